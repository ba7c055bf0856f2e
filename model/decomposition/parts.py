"""What becomes of a state's parts where a state is projected, shifted, normalised or activated.

A state `[…, d]` becomes `[…, P, d]`: part 0 is the state itself, the others are shares in it that
sum to it. Every step is linear in the shares once what depends on the state is frozen, so that the
sum stays exact (Modarressi et al. 2023, https://arxiv.org/abs/2306.02873).

Notation: C tokens, P parts, d and e sizes of a vector.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from model.config.encoder import NormName

_SMALLEST = 1e-6
"""Inputs of an activation nearer to 0 have the slope that it has here."""


def whole(parts: Tensor) -> Tensor:
    """The state `[C, 1, d]` itself."""
    return parts.narrow(-2, 0, 1)


def shifted(parts: Tensor, bias: Tensor | None) -> Tensor:
    """`[C, P, d]` plus a bias `[d]`, of which share i takes |xᵢ · b| / Σⱼ |xⱼ · b|.

    This is DecompX's "absdot", the default of its code. Where no share has anything of the bias's
    direction, all take as much.
    """
    if bias is None:
        return parts
    return parts + bias_shares((parts * bias).sum(dim=-1))[..., None] * bias


def bias_shares(products: Tensor) -> Tensor:
    """Parts' products with a bias, `[C, P]`, to how much of it each takes; the state all of it."""
    count = products.shape[-1]
    is_whole = torch.arange(count, device=products.device) == 0
    along = torch.where(is_whole, 0.0, products.abs())
    total = along.sum(dim=-1, keepdim=True)
    shares = torch.where(total > 0, along / total, 1 / (count - 1))
    return torch.where(is_whole, 1.0, shares)


def projected(parts: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """W x + b of `[C, P, d]` by a weight `[e, d]`, `[C, P, e]`."""
    return shifted(functional.linear(parts, weight), bias)


def normalized(
    parts: Tensor, kind: NormName, weight: Tensor, bias: Tensor | None, eps: float
) -> Tensor:
    """A norm whose scale, 1 / σ or 1 / rms of the state, is frozen; `[C, P, d]`.

    A layer norm's mean is linear, so each share loses its own (Kobayashi et al. 2021,
    https://arxiv.org/abs/2109.07152).
    """
    if kind == "layer_norm":
        parts = parts - parts.mean(dim=-1, keepdim=True)
    scale = torch.rsqrt(whole(parts).square().mean(dim=-1, keepdim=True) + eps)
    return shifted(parts * scale * weight, bias)


def slope(x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """f(x) / x, which is frozen, so that f(x) is linear in the parts of x (DecompX)."""
    x = torch.where(x.abs() < _SMALLEST, _SMALLEST, x)
    return activation(x) / x
