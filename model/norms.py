"""Normalisation of vectors: layer norm, and RMS norm without a mean.

Notation: d size of a vector.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config.encoder import EncoderConfig, NormName


class RMSNorm(nn.Module):
    """RMS norm x / √(mean(x²) + ε) · w (Zhang & Sennrich 2019).

    https://arxiv.org/abs/1910.07467
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of `[…, d]`."""
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMS norm of `[…, d]` with a broadcast weight, computed in float32 or wider."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


def norm_of(config: EncoderConfig, size: int | None = None) -> nn.Module:
    """Return a norm of the encoder's kind, by default of the hidden size."""
    size = size or config.hidden_size
    if config.layer.norm == "rms_norm":
        return RMSNorm(size, config.layer_norm_eps)
    return nn.LayerNorm(size, eps=config.layer_norm_eps, bias=config.layer.norm_bias)


def normalize(kind: NormName, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Apply a norm of the given kind to `[…, d]`, with parameters `[d]`."""
    if kind == "rms_norm":
        return rms_norm(x, weight, eps)
    return functional.layer_norm(x, weight.shape, weight, bias, eps)
