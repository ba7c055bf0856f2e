"""Attention weights of some heads of one layer, from what enters the layer: the one definition.

The forward pass, the exported attention graphs and a head that PyTorch recomputes all use it.

Notation: B batch, T query positions, S key positions, n heads asked for, d size of an input
vector (d_q, d_k), p size of a head's projection of it (p_q, p_k).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor
from torch.nn import functional

from model.config import NormalizerName, ScoreName
from model.normalizers import NORMALIZERS
from model.scores import SCORES

SCORE_PREFIX = "score_"
"""Of a score's own parameters, among a head's."""


@dataclass(frozen=True)
class Heads:
    """n heads of one layer: projections, score and normalizer."""

    count: int
    """n."""
    query: Callable[[Tensor], Tensor]
    """Projection of the query states `[B, T, d_q]` → `[B, T, n·p_q]`."""
    key: Callable[[Tensor], Tensor]
    """Projection of the key states `[B, S, d_k]` → `[B, S, n·p_k]`."""
    score: ScoreName
    normalizer: NormalizerName
    score_parameters: Mapping[str, Tensor]
    """`[n, …]` each."""

    @classmethod
    def from_parameters(
        cls, parameters: Mapping[str, Tensor], score: ScoreName, normalizer: NormalizerName
    ) -> Heads:
        """Heads from their own parameters alone.

        Args:
            parameters: `query_weight` `[n, p_q, d_q]`, `key_weight` `[n, p_k, d_k]`, `query_bias`
                `[n, p_q]` and `key_bias` `[n, p_k]` where there are any, and the score's own
                `score_…` `[n, …]`.
            score: of queries and keys.
            normalizer: of scores.

        """
        return cls(
            parameters["query_weight"].shape[0],
            _projection(parameters, "query"),
            _projection(parameters, "key"),
            score,
            normalizer,
            {
                name.removeprefix(SCORE_PREFIX): tensor
                for name, tensor in parameters.items()
                if name.startswith(SCORE_PREFIX)
            },
        )


def attention_weights(
    heads: Heads,
    query_states: Tensor,
    key_states: Tensor,
    mask: Tensor | None = None,
    *,
    in_float32: bool = False,
) -> Tensor:
    """normalize(score(W^q q, W^k k)) of each head.

    Args:
        heads: of the layer.
        query_states: what the heads' queries are projected from, `[B, T, d_q]`.
        key_states: what their keys are projected from, `[B, S, d_k]`; in self-attention the same.
        mask: boolean, broadcasts to `[B, n, T, S]`; True = may look.
        in_float32: scores of a lower precision are normalised in float32.

    Returns:
        `[B, n, T, S]`, over keys; a row sums to 1. A row in which nothing may be looked at is
        finite.

    """
    query = split_heads(heads.query(query_states), heads.count)
    key = split_heads(heads.key(key_states), heads.count)
    scores = SCORES[heads.score].function(query, key, **heads.score_parameters)
    return NORMALIZERS[heads.normalizer](scores.float() if in_float32 else scores, mask)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """`[B, S, N·p]` → `[B, N, S, p]`."""
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2)


def _projection(parameters: Mapping[str, Tensor], role: str) -> Callable[[Tensor], Tensor]:
    """The linear map of n heads as one: `[B, S, d]` → `[B, S, n·p]`."""
    bias = parameters.get(f"{role}_bias")
    return partial(
        functional.linear,
        weight=parameters[f"{role}_weight"].flatten(0, 1),
        bias=None if bias is None else bias.flatten(),
    )
