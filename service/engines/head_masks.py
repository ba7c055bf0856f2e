"""Mask that multiplies every head's output: 0 for the ablated heads of a batch's texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model.config.encoder import EncoderConfig
from service.engines.contract import Ablated, Floats


def head_mask(ablated: Sequence[Ablated], config: EncoderConfig) -> Floats | None:
    """Return a mask `[B, L, N]`: 0 for ablated heads, 1 for others; None without ablated heads."""
    if not any(ablated):
        return None
    shape = (len(ablated), config.num_hidden_layers, config.num_attention_heads)
    mask = np.ones(shape, np.float32)
    for row, heads in zip(mask, ablated, strict=True):
        for layer, head in heads:
            row[layer, head] = 0
    return mask
