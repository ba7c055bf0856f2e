"""Replies of /attention as pydantic models, for the OpenAPI document only."""

from __future__ import annotations

from pydantic import BaseModel, Field

from service.api.native.replies import TextResult, Usage
from service.api.wire.text_warnings import WarnedReply


class LargestWeights(BaseModel):
    """Largest weights of each query: `[layers][heads][S][k]`, largest first."""

    indices: list[list[list[list[int]]]]
    values: list[list[list[list[float]]]]


Rows = list[list[list[list[float]]]]
Enlarged = list[list[list[list[list[float]]]]]
"""Maps over pixels: `[layers][heads][queries][height][width]`."""
Norms = Rows | Enlarged | None
Maps = Rows | Enlarged | LargestWeights | None
Statistics = dict[str, list[list[float]]] | None


class Bins(BaseModel):
    """Start and end of the tokens of each row and each column of a pooled map."""

    queries: list[tuple[int, int]]
    keys: list[tuple[int, int]]


Bounds = Bins | None
Chosen = list[int] | None


class TargetResult(BaseModel):
    """Fields of a text's target in the reply of an encoder–decoder."""

    target_tokens: list[str] | None = Field(None, description="Tokens of the labels.")
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
        description="Change of the target tokens' mean log-probability by the ablation.",
    )
    target_logprobs: list[float] | None = Field(None, description="`[T]`.")


class AttentionResult(TextResult, TargetResult):
    """Attention of a text; fields that are not requested are absent."""

    attention: Maps = Field(
        None,
        description="`[layers][heads][S][S]`, over keys; with `enlarge` "
        "`[layers][heads][queries][height][width]`.",
    )
    stats: Statistics = Field(None, description="`[layers][heads]` by name, means over queries.")
    queries: Chosen = Field(None, description="Requested rows of the maps.")
    keys: Chosen = Field(None, description="Requested columns of the maps.")
    bins: Bounds = Field(None, description="With `max_size`.")
    rollout: list[list[float]] | None = Field(None, description="`[S][S]`.")
    norms: Norms = Field(
        None, description="`[layers][heads][S][S]`: norm of each key's contribution to each query."
    )
    norm_rollout: list[list[float]] | None = Field(None, description="`[S][S]`.")
    pooled_shift: float | None = Field(
        None, description="1 − cosine of the pooled vectors with and without the ablation."
    )


class AttentionReply(WarnedReply):
    """JSON reply of `POST /attention`."""

    model: str
    backend: str
    layers: list[int]
    heads: list[int]
    decoder_layers: list[int] | None = Field(None, description="With targets.")
    decoder_heads: list[int] | None = Field(None, description="With targets.")
    results: list[AttentionResult]
    usage: Usage
