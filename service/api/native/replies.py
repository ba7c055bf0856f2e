"""The native replies as pydantic models, for the OpenAPI document: they are written without."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from service.api.wire.media import SAFETENSORS
from service.api.wire.notices import NoticedReply
from service.api.wire.problems import PROBLEMS

Vectors = list[list[float]] | list[list[list[float]]] | str | None


class Usage(BaseModel):
    """What a request cost."""

    inputs: int
    tokens: int


class TextResult(BaseModel):
    """One text as the encoder saw it."""

    tokens: list[str]
    token_ids: list[int]
    offsets: list[tuple[int, int]]
    segment_ids: list[int]
    truncated: bool


class EncodeResult(TextResult):
    """One text's vectors; a field that was not asked for is absent."""

    embeddings: Vectors = Field(None, description="`[S][H]`, or `[layers][S][H]`.")
    pooled: list[float] | Vectors = Field(None, description="`[H]`, or `[layers][H]`.")
    attended: Vectors = Field(None, description="What attention adds.")
    residual: Vectors = Field(None, description="State that `mlp` is added to.")
    mlp: Vectors = Field(None, description="What the feed-forward part adds.")


class EncodeReply(NoticedReply):
    """The JSON reply of `POST /encode`."""

    model: str
    backend: str
    layers: list[int] | None = Field(None, description="Where the request has `layers`.")
    results: list[EncodeResult]
    usage: Usage


class LargestWeights(BaseModel):
    """The largest weights of each query: `[layers][heads][S][k]`, largest first."""

    indices: list[list[list[list[int]]]]
    values: list[list[list[list[float]]]]


Norms = list[list[list[list[float]]]] | None
Maps = list[list[list[list[float]]]] | LargestWeights | None
Statistics = dict[str, list[list[float]]] | None


class Bins(BaseModel):
    """Start and end of the tokens that each row and each column of a pooled map is of."""

    queries: list[tuple[int, int]]
    keys: list[tuple[int, int]]


Bounds = Bins | None
Chosen = list[int] | None


class TargetResult(BaseModel):
    """What an encoder–decoder's reply has of a text with a target."""

    target_tokens: list[str] | None = Field(None, description="Of the labels.")
    target_token_ids: list[int] | None = None
    target_offsets: list[tuple[int, int]] | None = None
    target_truncated: bool | None = None
    decoder_attention: Maps = Field(
        None, description="`[layers][heads][T][T]`; key k is the token before target token k."
    )
    cross_attention: Maps = Field(None, description="`[layers][heads][T][S]`, over the source.")
    decoder_norms: Norms = Field(None, description="`[layers][heads][T][T]`, as `norms`.")
    cross_norms: Norms = Field(None, description="`[layers][heads][T][S]`, as `norms`.")
    decoder_stats: Statistics = None
    cross_stats: Statistics = None
    decoder_queries: Chosen = None
    decoder_keys: Chosen = None
    decoder_bins: Bounds = None
    cross_queries: Chosen = None
    cross_keys: Chosen = None
    cross_bins: Bounds = None
    target_logprob_shift: float | None = Field(
        None,
        description="Mean log-probability of the target's tokens with the ablation, minus without.",
    )
    target_logprobs: list[float] | None = Field(None, description="`[T]`.")


class AttentionResult(TextResult, TargetResult):
    """One text's attention; a field that was not asked for is absent."""

    attention: Maps = Field(None, description="`[layers][heads][S][S]`, over keys.")
    stats: Statistics = Field(None, description="`[layers][heads]` a name, means over the queries.")
    queries: Chosen = Field(None, description="Rows of the maps, as asked for.")
    keys: Chosen = Field(None, description="Columns of the maps, likewise.")
    bins: Bounds = Field(None, description="With `max_size`.")
    rollout: list[list[float]] | None = Field(None, description="`[S][S]`.")
    norms: Norms = Field(
        None, description="`[layers][heads][S][S]`: of what each key adds to each query."
    )
    norm_rollout: list[list[float]] | None = Field(None, description="`[S][S]`.")
    pooled_shift: float | None = Field(
        None, description="1 − cosine of the pooled vectors with and without the ablation."
    )


class AttentionReply(NoticedReply):
    """The JSON reply of `POST /attention`."""

    model: str
    backend: str
    layers: list[int]
    heads: list[int]
    decoder_layers: list[int] | None = Field(None, description="With targets.")
    decoder_heads: list[int] | None = Field(None, description="With targets.")
    results: list[AttentionResult]
    usage: Usage


class AlignedWord(BaseModel):
    """A word of a text."""

    text: str
    start: int = Field(description="Code points of the text before it.")
    end: int


class AlignedWords(BaseModel):
    """The words of a pair of texts."""

    source: list[AlignedWord]
    target: list[AlignedWord]


class AlignedPair(BaseModel):
    """A word of a source and one of its target, by their numbers."""

    source: int
    target: int
    score: float


class Truncated(BaseModel):
    """Whether each text of a pair was cut."""

    source: bool
    target: bool


class AlignResult(BaseModel):
    """The word alignment of a pair of texts."""

    words: AlignedWords
    alignments: list[AlignedPair] = Field(description="Ascending.")
    pharaoh: str = Field(description="The same as `i-j`, parted by spaces.")
    truncated: Truncated
    matrix: list[list[float]] | None = Field(
        None, description="Scores of all words of the source with all of the target."
    )


class AlignReply(NoticedReply):
    """The reply of `POST /align`."""

    model: str
    backend: str
    method: Literal["cross", "mutual", "itermax", "softmax"]
    results: list[AlignResult]
    usage: Usage


class LayerDifference(BaseModel):
    """How far one hidden state is from PyTorch's."""

    layer: int
    max_abs_diff: float
    min_cosine: float
    atol: float
    rtol: float
    passed: bool


class HeadDifference(LayerDifference):
    """How far one head's maps are from PyTorch's."""

    head: int


class TensorDifference(BaseModel):
    """How far the pooled unit vectors, or a task head's answers, are from PyTorch's."""

    max_abs_diff: float
    min_cosine: float
    atol: float
    rtol: float
    passed: bool


class DecoderDifferences(BaseModel):
    """How far a decoder's tensors are from PyTorch's, each input being its own target."""

    hidden: list[LayerDifference]
    cross_queries: list[LayerDifference] = Field(description="Query states of cross-attention.")
    attention: list[HeadDifference]
    cross_attention: list[HeadDifference]
    logprobs: TensorDifference


class VerifyReply(BaseModel):
    """The reply of `POST /verify`."""

    passed: bool
    reference: Literal["torch"]
    against: Literal["onnx"]
    inputs: int
    hidden: list[LayerDifference]
    attention: list[HeadDifference]
    pooled: TensorDifference
    task: TensorDifference | None = Field(None, description="Of a model with a task head.")
    decoder: DecoderDifferences | None = Field(None, description="Of an encoder–decoder.")


def documented(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """A route's replies, for the OpenAPI document."""
    binary = {SAFETENSORS: {"schema": {"type": "string", "format": "binary"}}}
    return {200: {"model": model, "content": binary}, **PROBLEMS}
