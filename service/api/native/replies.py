"""Native replies as pydantic models, for the OpenAPI document only."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from service.api.wire.media import SAFETENSORS
from service.api.wire.problems import PROBLEMS
from service.api.wire.reply_headers import Responses, WarnedReply

Vectors = list[list[float]] | list[list[list[float]]] | str | None


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


class SparseFields(BaseModel):
    """Token ids of the vocabulary and their weights; in base64 int32 and float32."""

    indices: list[int] | str
    values: list[float] | str


class EncodeResult(TextResult):
    """Vectors of a text; fields that are not requested are absent."""

    embeddings: Vectors = Field(None, description="`[S][H]`, or `[layers][S][H]`.")
    pooled: list[float] | Vectors = Field(None, description="`[H]`, or `[layers][H]`.")
    windows: int | None = Field(None, description="With `overflow` `windows`: their number.")
    spans: list[tuple[int, int]] | None = Field(
        None, description="Start and end of each span, in code points."
    )
    sparse: SparseFields | None = Field(None, description="Words with a weight, ascending.")
    multivector: Vectors = Field(None, description="`[n][D]`, vectors of late interaction.")
    span_vectors: Vectors = Field(None, description="`[n][D]`, or `[layers][n][D]`.")


class EncodeReply(WarnedReply):
    """JSON reply of `POST /encode`."""

    model: str
    backend: str
    layers: list[int] | None = Field(None, description="If the request has `layers`.")
    results: list[EncodeResult]
    usage: Usage


class LayerDifference(BaseModel):
    """Difference of a hidden state from PyTorch's."""

    layer: int
    max_abs_diff: float
    min_cosine: float
    atol: float
    rtol: float
    passed: bool


class HeadDifference(LayerDifference):
    """Difference of a head's maps from PyTorch's."""

    head: int


class TensorDifference(BaseModel):
    """Difference of the pooled unit vectors, or of a task head's outputs, from PyTorch's."""

    max_abs_diff: float
    min_cosine: float
    atol: float
    rtol: float
    passed: bool


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
