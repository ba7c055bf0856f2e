"""Normalizers from scores to weights. Pure functions.

A mask is boolean and broadcasts to the scores; **True means: this key may be attended to**. A row
without any allowed key has finite weights, but no other guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from model.config.encoder import NormalizerName


def softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return exp(s) / Σ exp(s) over the last axis, over the keys that `mask` allows.

    Args:
        scores: `[..., S]`.
        mask: boolean, broadcasts to `scores`; True = allowed.

    Returns:
        Weights `[..., S]`; a row sums to 1.

    """
    if mask is not None:
        scores = scores + _bias(mask, scores.dtype)
    return torch.softmax(scores, dim=-1)


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 for allowed keys, and for others a number that makes their weight exactly 0.

    The bias has the mask's own shape, usually `[B, 1, 1, S]`, and is added to all scores at once.
    It is half of the lowest number, so that adding a score cannot overflow.
    """
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, zero, torch.finfo(dtype).min / 2)


def sparsemax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the Euclidean projection of `scores` onto the simplex, over the allowed keys.

    Martins & Astudillo 2016, Algorithm 1 (https://arxiv.org/abs/1602.02068): sort
    z₁ ≥ z₂ ≥ …; k is the largest index with 1 + k·z_k > Σ_{j≤k} z_j;
    τ = (Σ_{j≤k} z_j − 1) / k; the weights are max(z − τ, 0), many of them exactly 0.

    Args:
        scores: `[..., S]`.
        mask: boolean, broadcasts to `scores`; True = allowed.

    Returns:
        Weights `[..., S]`; a row sums to 1.

    """
    dtype = scores.dtype
    scores = scores.to(torch.promote_types(dtype, torch.float32))  # sums drift in half precision
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    scores = scores - scores.amax(dim=-1, keepdim=True)
    ordered = scores.sort(dim=-1, descending=True).values
    cumulative = ordered.cumsum(dim=-1)
    rank = torch.ones_like(scores).cumsum(dim=-1)
    in_support = 1 + rank * ordered > cumulative
    size = in_support.sum(dim=-1, keepdim=True)
    threshold = (cumulative.gather(-1, size - 1) - 1) / size.to(scores.dtype)
    weights = (scores - threshold).clamp_min(0).to(dtype)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


NORMALIZERS: Mapping[NormalizerName, Callable[[Tensor, Tensor | None], Tensor]] = {
    "softmax": softmax,
    "sparsemax": sparsemax,
}
