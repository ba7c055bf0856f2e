"""Native replies as pydantic models, for the OpenAPI document only."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.api.wire.media import SAFETENSORS
from service.api.wire.replies import PROBLEMS, Responses, WarnedReply
from service.inference.outputs.declared import OUTPUTS
from service.inference.outputs.field import Field as OutputField


class Usage(BaseModel):
    """Number of inputs and tokens of a request."""

    inputs: int
    tokens: int


class TextResult(BaseModel):
    """Tokenised text."""

    tokens: list[str]
    token_ids: list[int]
    offsets: list[tuple[int, int]]
    segment_ids: list[int]
    truncated: bool
    grid: tuple[int, int] | None = Field(None, description="Of a picture: rows, columns.")
    size: tuple[int, int] | None = Field(
        None, description="Of a picture: width and height in pixels, as it is displayed."
    )
    crop: tuple[float, float, float, float] | None = Field(
        None, description="Left, top, right and bottom of the part that the model sees, in pixels."
    )
    tower: Literal["text", "vision"] | None = Field(
        None, description="Tower of a model with two towers."
    )


Schema = dict[str, Any]


def nested(kind: str, depth: int) -> Schema:
    """Return the schema of lists in lists, of values of a kind."""
    return {"type": "array", "items": nested(kind, depth - 1)} if depth else {"type": kind}


def members(properties: Schema) -> Schema:
    """Return the schema of an object with these properties."""
    return {"type": "object", "properties": properties}


def schema_of(field: OutputField) -> Schema:
    """Return the schema of a field of a text: lists, with hidden states in front, or base64."""
    schema = nested("integer" if "int" in field.dtype else "number", len(field.axes))
    forms = [schema, {"type": "array", "items": schema}] if field.layered else [schema]
    if not field.fact:
        schema = {"anyOf": [*forms, {"type": "string"}]}
    return {**schema, "description": field.about}


def add_outputs(schema: Schema) -> None:
    """Add the fields of all outputs to the schema of a text's result."""
    for field in (field for output in OUTPUTS.values() for field in output.fields):
        name, dot, member = field.name.partition(".")
        if dot:
            group = schema["properties"].setdefault(name, members({}))
            group["properties"][member] = schema_of(field)
        elif not field.bounds_of:
            schema["properties"][name] = schema_of(field)


class EncodeResult(TextResult):
    """Vectors of a text; fields that are not requested are absent."""

    model_config = ConfigDict(json_schema_extra=add_outputs)


class EncodeReply(WarnedReply):
    """JSON reply of `POST /encode`."""

    model: str
    backend: str
    layers: list[int] | None = Field(None, description="If the request has `layers`.")
    results: list[EncodeResult]
    usage: Usage


class TensorDifference(BaseModel):
    """Difference of the pooled unit vectors, or of a task head's outputs, from PyTorch's."""

    max_abs_diff: float
    min_cosine: float
    atol: float
    rtol: float
    passed: bool


class LayerDifference(TensorDifference):
    """Difference of a hidden state from PyTorch's."""

    layer: int


class HeadDifference(LayerDifference):
    """Difference of a head's maps from PyTorch's."""

    head: int


class DecoderDifferences(BaseModel):
    """Differences of a decoder's tensors from PyTorch's, with each input as its own target."""

    hidden: list[LayerDifference]
    cross_queries: list[LayerDifference] = Field(description="Query states of cross-attention.")
    attention: list[HeadDifference]
    cross_attention: list[HeadDifference]
    logprobs: TensorDifference


class VerifyReply(BaseModel):
    """Reply of `POST /verify`."""

    passed: bool
    reference: Literal["torch"]
    against: Literal["onnx"]
    inputs: int
    hidden: list[LayerDifference]
    attention: list[HeadDifference]
    pooled: TensorDifference
    task: TensorDifference | None = Field(None, description="For models with a task head.")
    decoder: DecoderDifferences | None = Field(None, description="For encoder–decoders.")


def documented(model: type[BaseModel]) -> Responses:
    """Return the replies of a route, for the OpenAPI document."""
    binary = {SAFETENSORS: {"schema": {"type": "string", "format": "binary"}}}
    return {200: {"model": model, "content": binary}, **PROBLEMS}
