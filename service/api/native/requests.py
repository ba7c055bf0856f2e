"""Requests as pydantic models: what may be asked."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    model_validator,
)
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from model.artifact.pooling import PoolingName
from service.inference.tokenizer import Direction, Input

BackendName = Literal["onnx", "torch"]
MAX_FIELDS = 64
"""Beyond it a request is refused before its fields are looked at: each unknown one costs time."""


def _inputs(value: Any) -> list[Input]:
    """`str`, `[str]` or `[[str, str]]` → a list; stops at the first thing that is neither."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise PydanticCustomError("inputs", "a text, a list of texts or a list of pairs is needed")
    if not value:
        raise PydanticCustomError("inputs", "at least one text is needed")
    if isinstance(value[0], str):
        for index, text in enumerate(value):
            if not isinstance(text, str):
                raise PydanticCustomError("inputs", "inputs[{index}] is no text", {"index": index})
        return list(value)
    pairs: list[Input] = []
    for index, pair in enumerate(value):
        match pair:
            case [str(first), str(second)]:
                pairs.append((first, second))
            case _:
                raise PydanticCustomError(
                    "inputs", "inputs[{index}] is neither a text nor a pair", {"index": index}
                )
    return pairs


def _indices(value: Any) -> list[int] | None:
    """A list of integers, none twice; stops at the first thing that is not one."""
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("indices", "a list with at least one integer is needed")
    for item in value:
        if type(item) is not int:
            raise PydanticCustomError("indices", "a list of integers is needed")
    return _no_duplicates(value)


def _no_duplicates(values: list[Any]) -> list[Any]:
    if len(set(values)) != len(values):
        raise PydanticCustomError("duplicate", "a value is listed twice")
    return values


_Text = {"type": "string"}
Inputs = Annotated[
    list[Input],
    PlainValidator(_inputs),
    WithJsonSchema(
        {
            "anyOf": [
                _Text,
                {"type": "array", "items": _Text, "minItems": 1},
                {
                    "type": "array",
                    "items": {"type": "array", "items": _Text, "minItems": 2, "maxItems": 2},
                    "minItems": 1,
                },
            ],
            "title": "Inputs",
            "examples": ["The animal didn't cross the street because it was too tired"],
        }
    ),
]
Indices = Annotated[
    list[int] | None,
    PlainValidator(_indices),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {"type": "integer"},
                    "minItems": 1,
                    "uniqueItems": True,
                },
                {"type": "null"},
            ]
        }
    ),
]


class StrictRequest(BaseModel):
    """Nothing is converted, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and len(fields) > MAX_FIELDS:
            raise PydanticCustomError("fields", "there are too many fields")
        return fields


class TextRequest(StrictRequest):
    """What every request with texts has."""

    inputs: Inputs = Field(description="One text, many texts, or sentence pairs.")
    truncate: bool = Field(False, description="Cut a text that is too long, instead of refusing.")
    truncation_direction: Direction = Field("right", description="Which side is cut.")
    prompt_name: str | None = Field(
        None, description="A prefix that the checkpoint's own configuration names."
    )
    backend: BackendName | None = Field(
        None, description="Which engine answers; never replaced by another."
    )


class EncodeRequest(TextRequest):
    """`POST /encode`."""

    outputs: Annotated[
        list[Literal["tokens", "pooled"]],
        Field(min_length=1, max_length=2),
        AfterValidator(_no_duplicates),
    ] = Field(
        default=["tokens", "pooled"], description="Token vectors, one pooled vector, or both."
    )
    layer: int = Field(
        -1, description="Which hidden state: 0 = embeddings … L = last; negative from the end."
    )
    pooling: PoolingName | None = Field(None, description="The checkpoint's own by default.")
    normalize: bool | None = Field(
        None, description="L2-normalise the pooled vector; the checkpoint's own by default."
    )
    dimensions: int | None = Field(
        None, ge=1, description="Keep the first n of the pooled vector, then normalise."
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64 = little-endian float32, row-major, one string an array."
    )


class Head(StrictRequest):
    """A head of a layer; negative numbers count from the end."""

    layer: int
    head: int


class AttentionRequest(TextRequest):
    """`POST /attention`."""

    layers: Indices = Field(None, description="0 … L−1, negative from the end; all by default.")
    heads: Indices = Field(None, description="0 … N−1, negative from the end; all by default.")
    include: Annotated[
        list[Literal["weights", "stats", "rollout"]],
        Field(min_length=1, max_length=3),
        AfterValidator(_no_duplicates),
    ] = Field(
        default=["weights"], description="The maps, statistics of each, and the attention rollout."
    )
    top_k: int | None = Field(
        None, ge=1, description="Of each query's weights the k largest, instead of all."
    )
    ablate: Annotated[list[Head], Field(min_length=1, max_length=4096)] | None = Field(
        None, description="Heads whose output is multiplied by zero."
    )
    dtype: Literal["float32", "float16"] = Field("float32", description="Of the binary form.")


class VerifyRequest(StrictRequest):
    """`POST /verify`."""

    inputs: Inputs = Field(description="Texts or pairs that go through both engines.")
    truncate: bool = Field(False, description="Cut a text that is too long, instead of refusing.")
