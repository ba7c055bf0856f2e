"""Parts of a state after a projection, a bias, a norm or an activation of the state.

A state `[…, d]` becomes `[…, P, d]`: part 0 is the state itself, the others are shares that sum to
it. Once factors that depend on the state are frozen, every step is linear in the shares, so that
the sum stays exact (Modarressi et al. 2023, https://arxiv.org/abs/2306.02873).

Notation: C tokens, P parts, d and e sizes of a vector.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from model.config.encoder import NormName

_SMALLEST = 1e-6
"""Smallest magnitude of an activation's input; smaller inputs get the slope at this value."""


def whole(parts: Tensor) -> Tensor:
    """Return the state `[C, 1, d]` itself."""
    return parts.narrow(-2, 0, 1)


def shifted(parts: Tensor, bias: Tensor | None) -> Tensor:
    """Add a bias `[d]` to parts `[C, P, d]`, of which share i gets |xᵢ · b| / Σⱼ |xⱼ · b|.

    This is DecompX's "absdot", the default of its code. If all shares are orthogonal to the bias,
    it is divided equally.
    """
    if bias is None:
        return parts
    return parts + bias_shares((parts * bias).sum(dim=-1))[..., None] * bias


def bias_shares(products: Tensor) -> Tensor:
    """Return each part's share of a bias, given products with it `[C, P]`; 1 for the state."""
    count = products.shape[-1]
    is_whole = torch.arange(count, device=products.device) == 0
    along = torch.where(is_whole, 0.0, products.abs())
    total = along.sum(dim=-1, keepdim=True)
    shares = torch.where(total > 0, along / total, 1 / (count - 1))
    return torch.where(is_whole, 1.0, shares)


def projected(parts: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return W x + b, `[C, P, e]`, of parts `[C, P, d]` with a weight `[e, d]`."""
    return shifted(functional.linear(parts, weight), bias)


def normalized(
    parts: Tensor, kind: NormName, weight: Tensor, bias: Tensor | None, eps: float
) -> Tensor:
    """Apply a norm whose scale, 1 / σ or 1 / rms of the state, is frozen; `[C, P, d]`.

    A layer norm's mean is linear, so each share is centred by its own mean (Kobayashi et al. 2021,
    https://arxiv.org/abs/2109.07152).
    """
    if kind == "layer_norm":
        parts = parts - parts.mean(dim=-1, keepdim=True)
    scale = torch.rsqrt(whole(parts).square().mean(dim=-1, keepdim=True) + eps)
    return shifted(parts * scale * weight, bias)


def slope(x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Return f(x) / x, to be frozen, so that f(x) is linear in the parts of x (DecompX)."""
    x = torch.where(x.abs() < _SMALLEST, _SMALLEST, x)
    return activation(x) / x
