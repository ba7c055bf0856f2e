"""Fields of requests beside their texts; the defaults are the service's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired, Required, TypedDict

Direction = Literal["right", "left"]
MapKind = Literal["encoder", "decoder", "cross"]
Place = int | str | Sequence[int]
"""Number of a token, or of a picture a special token's name, or row and column of a patch."""


class Head(TypedDict):
    """Head of a layer; of the encoder, unless `map` names another kind."""

    layer: int
    head: int
    map: NotRequired[MapKind]


class ModelField(TypedDict, total=False):
    """Field that selects one of several models."""

    model: str | None


class TruncationFields(ModelField, total=False):
    """Fields for texts that are too long."""

    truncate: bool
    truncation_direction: Direction


class TextFields(TruncationFields, total=False):
    """Fields for tokenization and the choice of an engine."""

    prompt_name: str | None
    task: str | None
    backend: Literal["onnx", "torch"] | None


class Chunk(TypedDict):
    """Chunks into which each text is cut."""

    by: Literal["tokens", "sentences", "paragraphs"]
    size: NotRequired[int]
    overlap: NotRequired[int | None]
    late: NotRequired[bool]


class EncodeFields(TextFields, total=False):
    """Fields of `POST /encode`."""

    overflow: Literal["error", "truncate", "windows"] | None
    spans: Sequence[Sequence[Sequence[int]]] | None
    chunk: Chunk | None
    outputs: Sequence[Literal["tokens", "pooled", "sparse", "multivector"]]
    layer: int
    layers: Sequence[int] | None
    ablate: Sequence[Head] | None
    pooling: Literal["mean", "cls", "max", "last"] | None
    normalize: bool | None
    dimensions: int | None
    vector_type: Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"]
    vector_ranges: Sequence[Sequence[float]] | None


class AttentionFields(TextFields, total=False):
    """Fields of `POST /attention`."""

    targets: str | Sequence[str] | None
    maps: Sequence[MapKind] | None
    layers: Sequence[int] | None
    heads: Sequence[int] | None
    queries: Sequence[Place] | None
    keys: Sequence[Place] | None
    max_size: int | None
    enlarge: Literal["nearest", "bilinear"] | None
    tower: Literal["text", "vision"] | None
    include: Sequence[Literal["weights", "stats", "rollout", "norms", "norm_rollout", "logprobs"]]
    top_k: int | None
    ablate: Sequence[Head] | None
    dtype: Literal["float32", "float16"]


class HeadScoresFields(TextFields, total=False):
    """Fields of `POST /attention/scores`."""

    layer: Required[int]
    head: Required[int]
    queries: Sequence[Place] | None
    keys: Sequence[Place] | None
    ablate: Sequence[Head] | None


class VerifyFields(ModelField, total=False):
    """Fields of `POST /verify`."""

    truncate: bool


class PredictFields(TruncationFields, total=False):
    """Fields of `POST /predict`."""

    raw_scores: bool
    aggregation: Literal["none", "simple", "first", "average", "max"] | None
    labels: Sequence[str] | None
    template: str | None
    top_k: int | None


class ScoreWeights(TypedDict, total=False):
    """Weights of the scores of bge-m3's three vectors; a missing weight is 0."""

    dense: float
    sparse: float
    multivector: float


class RerankFields(TruncationFields, total=False):
    """Fields of `POST /rerank`."""

    raw_scores: bool
    weights: ScoreWeights | None


class SparseFields(TruncationFields, total=False):
    """Fields of `POST /embed_sparse`."""

    prompt_name: str | None
    method: Literal["bm42"] | None


class ScoreFields(ModelField, total=False):
    """Fields of `POST /score`."""

    truncate_prompt_tokens: int | None
    truncation_side: Direction | None
    use_activation: bool | None


class TokenizeFields(ModelField, total=False):
    """Fields of `POST /tokenize`."""

    add_special_tokens: bool
    prompt_name: str | None


class ExplainFields(TextFields, total=False):
    """Fields of `POST /explain`."""

    include: Sequence[Literal["pairs", "occlusion", "decomposition", "heads", "matches"]] | None
    layer: int
    pooling: Literal["mean", "cls", "max", "last"] | None
    spans: Literal["tokens", "words", "sentences"] | None
    block: int | None
    top: int | None


class RankingFields(TruncationFields, total=False):
    """Fields of `POST /rank`."""

    top_n: int | None
    query_prompt_name: str | None
    document_prompt_name: str | None
    explain: Literal["none", "tokens", "contrast"]
    compare: Sequence[int] | None
    top_words: int | None
    query_without: Sequence[tuple[int, int]] | None
    documents_without: Sequence[Sequence[tuple[int, int]]] | None
    weights: ScoreWeights | None
    backend: Literal["onnx", "torch"] | None
