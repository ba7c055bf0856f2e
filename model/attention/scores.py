"""Scores of how well a key matches a query. Pure functions.

Notation: B batch, N heads, T query positions, S key positions, p size of a head's projection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from model.config.encoder import ScoreName


def scaled_dot_product_score(query: Tensor, key: Tensor) -> Tensor:
    """Return q·k / √p (Vaswani et al. 2017, eq. 1, https://arxiv.org/abs/1706.03762).

    `[B, N, T, p]`, `[B, N, S, p]` → `[B, N, T, S]`.
    """
    return query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])


def cosine_score(query: Tensor, key: Tensor) -> Tensor:
    """Return q·k / (‖q‖‖k‖) (Graves et al. 2014, eq. 6, https://arxiv.org/abs/1410.5401).

    Each norm is raised to at least 1e-8, so a zero vector scores 0 with every vector. `[B, N, T,
    p]`, `[B, N, S, p]` → `[B, N, T, S]` in [-1, 1].
    """
    return _unit(query) @ _unit(key).transpose(-2, -1)


def _unit(x: Tensor) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # 1e-8 is 0 in half precision
    return (wide / wide.norm(dim=-1, keepdim=True).clamp_min(1e-8)).to(x.dtype)


def bilinear_score(query: Tensor, key: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return qᵀWk + b, "general" in Luong et al. 2015, eq. 8 (https://arxiv.org/abs/1508.04025).

    `[B, N, T, p_q]`, `[B, N, S, p_k]` → `[B, N, T, S]`; weight `[N, p_q, p_k]`, bias `[N]`.
    """
    return query @ weight @ key.transpose(-2, -1) + bias[:, None, None]


def additive_score(
    query: Tensor, key: Tensor, query_weight: Tensor, key_weight: Tensor, vector: Tensor
) -> Tensor:
    """Return vᵀtanh(W_q q + W_k k).

    Bahdanau et al. 2015, A.1.2, https://arxiv.org/abs/1409.0473.

    The sum over the a hidden features is taken one feature at a time. The full `[B, N, T, S, a]`
    never exists, so the peak memory is `[B, N, T, S]`, as with every other score. `[B, N, T, p_q]`,
    `[B, N, S, p_k]` → `[B, N, T, S]`; query weight `[N, a, p_q]`, key weight `[N, a, p_k]`, vector
    `[N, a]`.
    """
    query_features = query @ query_weight.transpose(-2, -1)  # [B, N, T, a]
    key_features = key @ key_weight.transpose(-2, -1)  # [B, N, S, a]
    columns = zip(
        query_features.unbind(-1), key_features.unbind(-1), vector.unbind(-1), strict=True
    )
    terms = (
        v[:, None, None] * torch.tanh(q.unsqueeze(-1) + k.unsqueeze(-2)) for q, k, v in columns
    )
    total = next(terms)
    for term in terms:
        total = total + term
    return total


@dataclass(frozen=True)
class Score:
    """Score function, and the shapes of the parameters it takes after query and key."""

    function: Callable[..., Tensor]
    parameter_shapes: Callable[[int, int, int], dict[str, tuple[int, ...]]]
    same_size: bool
    """Whether the score needs p_q = p_k."""


def _no_parameters(*_: int) -> dict[str, tuple[int, ...]]:
    return {}


SCORES: Mapping[ScoreName, Score] = {
    "scaled_dot_product": Score(scaled_dot_product_score, _no_parameters, same_size=True),
    "cosine": Score(cosine_score, _no_parameters, same_size=True),
    "bilinear": Score(
        bilinear_score, lambda n, q, k: {"weight": (n, q, k), "bias": (n,)}, same_size=False
    ),
    "additive": Score(
        additive_score,
        lambda n, q, k: {"query_weight": (n, k, q), "key_weight": (n, k, k), "vector": (n, k)},
        same_size=False,
    ),
}
