"""Attention as pure functions that return weights, and the module that wraps them.

Notation used in every docstring here:

    B  batch               N  heads
    T  query positions     S  key positions
    d  size of an input vector (d_q, d_k, d_v)
    p  size of a head's projection of it (p_q, p_k, p_v); p_o is the output's size

A mask is boolean and broadcasts to `[B, N, T, S]`; **True means: this query may look at this
key**. A query that may look at no key gets weights of zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.config import NormalizerName, ScoreName

# ── scores: how well does a key answer a query? ────────────────────────────────────────────


def scaled_dot_product_score(query: Tensor, key: Tensor) -> Tensor:
    """q·k / √p (Vaswani et al. 2017, eq. 1, https://arxiv.org/abs/1706.03762).

    Args:
        query: `[B, N, T, p]`.
        key: `[B, N, S, p]`.

    Returns:
        Scores `[B, N, T, S]`.

    """
    return query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])


def cosine_score(query: Tensor, key: Tensor) -> Tensor:
    """q·k / (‖q‖‖k‖) (Graves et al. 2014, eq. 6, https://arxiv.org/abs/1410.5401).

    Each norm is held at or above 1e-8, so a zero vector scores 0 with everything.

    Args:
        query: `[B, N, T, p]`.
        key: `[B, N, S, p]`.

    Returns:
        Scores `[B, N, T, S]` in [-1, 1].

    """
    query = query / query.norm(dim=-1, keepdim=True).clamp_min(1e-8)
    key = key / key.norm(dim=-1, keepdim=True).clamp_min(1e-8)
    return query @ key.transpose(-2, -1)


def bilinear_score(query: Tensor, key: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """qᵀWk + b, "general" in Luong et al. 2015, eq. 8 (https://arxiv.org/abs/1508.04025).

    Args:
        query: `[B, N, T, p_q]`.
        key: `[B, N, S, p_k]`.
        weight: `[N, p_q, p_k]`.
        bias: `[N]`.

    Returns:
        Scores `[B, N, T, S]`.

    """
    return query @ weight @ key.transpose(-2, -1) + bias[:, None, None]


def additive_score(
    query: Tensor, key: Tensor, query_weight: Tensor, key_weight: Tensor, vector: Tensor
) -> Tensor:
    """vᵀtanh(W_q q + W_k k) (Bahdanau et al. 2015, A.1.2, https://arxiv.org/abs/1409.0473).

    The sum over the a hidden features is taken one feature at a time: the full
    `[B, N, T, S, a]` never exists, so the peak is that of any other score, `[B, N, T, S]`.

    Args:
        query: `[B, N, T, p_q]`.
        key: `[B, N, S, p_k]`.
        query_weight: `[N, a, p_q]`.
        key_weight: `[N, a, p_k]`.
        vector: `[N, a]`.

    Returns:
        Scores `[B, N, T, S]`.

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
    """A score function and the shapes of the parameters it takes after query and key."""

    function: Callable[..., Tensor]
    parameter_shapes: Callable[[int, int, int], dict[str, tuple[int, ...]]]
    same_size: bool
    """Whether it needs p_q = p_k."""


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

# ── normalizers: scores to weights ─────────────────────────────────────────────────────────


def softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """exp(s) / Σ exp(s) over the last axis, over the keys that `mask` allows.

    Args:
        scores: `[..., S]`.
        mask: boolean, broadcasts to `scores`; True = allowed.

    Returns:
        Weights `[..., S]`; a row sums to 1, or is all zero where nothing is allowed.

    """
    if mask is None:
        return torch.softmax(scores, dim=-1)
    lowest = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~mask, lowest), dim=-1).masked_fill(~mask, 0.0)


def sparsemax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """The Euclidean projection of `scores` onto the simplex, over the allowed keys.

    Martins & Astudillo 2016, Algorithm 1 (https://arxiv.org/abs/1602.02068): sort
    z₁ ≥ z₂ ≥ …; k is the largest index with 1 + k·z_k > Σ_{j≤k} z_j;
    τ = (Σ_{j≤k} z_j − 1) / k; the weights are max(z − τ, 0), many of them exactly 0.

    Args:
        scores: `[..., S]`.
        mask: boolean, broadcasts to `scores`; True = allowed.

    Returns:
        Weights `[..., S]`; a row sums to 1, or is all zero where nothing is allowed.

    """
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    scores = scores - scores.amax(dim=-1, keepdim=True)
    ordered = scores.sort(dim=-1, descending=True).values
    cumulative = ordered.cumsum(dim=-1)
    rank = torch.ones_like(scores).cumsum(dim=-1)
    in_support = 1 + rank * ordered > cumulative
    size = in_support.sum(dim=-1, keepdim=True)
    threshold = (cumulative.gather(-1, size - 1) - 1) / size.to(scores.dtype)
    weights = (scores - threshold).clamp_min(0)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


NORMALIZERS: Mapping[NormalizerName, Callable[[Tensor, Tensor | None], Tensor]] = {
    "softmax": softmax,
    "sparsemax": sparsemax,
}

# ── masks and heads ────────────────────────────────────────────────────────────────────────


def padding_mask(attention_mask: Tensor) -> Tensor:
    """`[B, S]`, non-zero on real tokens → boolean `[B, 1, 1, S]`, True on real tokens."""
    return attention_mask.bool()[:, None, None, :]


def causal_mask(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Boolean `[T, S]`: True where the key is not after the query."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """`[B, S, N·p]` → `[B, N, S, p]`."""
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """`[B, N, S, p]` → `[B, S, N·p]`."""
    return x.transpose(1, 2).flatten(2)


# ── the module ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes of multi-head attention: inputs d, one head's projections p, the output p_o."""

    num_heads: int
    d_q: int
    d_k: int
    d_v: int
    p_q: int
    p_k: int
    p_v: int
    p_o: int

    @classmethod
    def uniform(cls, hidden_size: int, num_heads: int) -> AttentionSizes:
        """Self-attention that keeps its size: every d and p_o is H, every p is H / N."""
        h, p = hidden_size, hidden_size // num_heads
        return cls(num_heads, d_q=h, d_k=h, d_v=h, p_q=p, p_k=p, p_v=p, p_o=h)


class MultiHeadAttention(nn.Module):
    """N heads h_i = f(W_i^q q, W_i^k k, W_i^v v), concatenated and projected by W_o.

    Vaswani et al. 2017, section 3.2.2 (https://arxiv.org/abs/1706.03762), with any score and
    normalizer for f.
    """

    def __init__(
        self,
        sizes: AttentionSizes,
        score: ScoreName = "scaled_dot_product",
        normalizer: NormalizerName = "softmax",
        *,
        bias: bool = True,
    ) -> None:
        """Allocate the projections and the score's own parameters.

        Raises:
            ValueError: the score needs p_q = p_k and they differ.

        """
        super().__init__()
        if SCORES[score].same_size and sizes.p_q != sizes.p_k:
            raise ValueError(f"{score} needs p_q = p_k, not {sizes.p_q} and {sizes.p_k}")
        n = sizes.num_heads
        self.num_heads = n
        self.score: ScoreName = score
        self.normalizer: NormalizerName = normalizer
        self.query = nn.Linear(sizes.d_q, n * sizes.p_q, bias=bias)
        self.key = nn.Linear(sizes.d_k, n * sizes.p_k, bias=bias)
        self.value = nn.Linear(sizes.d_v, n * sizes.p_v, bias=bias)
        self.output = nn.Linear(n * sizes.p_v, sizes.p_o, bias=bias)
        shapes = SCORES[score].parameter_shapes(n, sizes.p_q, sizes.p_k)
        self.score_parameters = nn.ParameterDict(
            {name: nn.init.normal_(torch.empty(shape), std=0.1) for name, shape in shapes.items()}
        )

    def weights(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention weights of every head.

        Args:
            query: `[B, T, d_q]`.
            key: `[B, S, d_k]`.
            mask: boolean, broadcasts to `[B, N, T, S]`; True = may look.

        Returns:
            `[B, N, T, S]`; a row sums to 1, or is zero where nothing may be looked at.

        """
        scores = SCORES[self.score].function(
            split_heads(self.query(query), self.num_heads),
            split_heads(self.key(key), self.num_heads),
            **self.score_parameters,
        )
        return NORMALIZERS[self.normalizer](scores, mask)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        head_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attend from `query` over `key` and `value`; self-attention when all three are one.

        Args:
            query: `[B, T, d_q]`.
            key: `[B, S, d_k]`.
            value: `[B, S, d_v]`.
            mask: boolean, broadcasts to `[B, N, T, S]`; True = may look.
            head_mask: `[N]` or `[B, N]`; multiplies each head's output before the output
                projection (0 ablates the head; Michel et al. 2019, eq. 2,
                https://arxiv.org/abs/1905.10650). The returned weights are not scaled.

        Returns:
            The output `[B, T, p_o]` and the weights `[B, N, T, S]`.

        """
        weights = self.weights(query, key, mask)
        context = weights @ split_heads(self.value(value), self.num_heads)  # [B, N, T, p_v]
        if head_mask is not None:
            context = context * head_mask[..., None, None]
        return self.output(merge_heads(context)), weights
