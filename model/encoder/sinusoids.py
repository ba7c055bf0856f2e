"""Tables of sinusoidal positions, for checkpoints that do not store them.

Vaswani et al. 2017, section 3.5 (https://arxiv.org/abs/1706.03762), in the two layouts of
transformers; in both, the sines precede the cosines.

Notation: n positions, d features.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from model.config.encoder import EncoderConfig
from model.families.family import SinusoidLayout


def sinusoid_table(layout: SinusoidLayout, config: EncoderConfig) -> Tensor:
    """Return the position table of an encoder or decoder, float32.

    Raises:
        MemoryError, RuntimeError: the table does not fit into memory; check its size first.

    """
    after_padding = config.embeddings.positions == "table_after_padding"
    offset = config.pad_token_id + 1 if after_padding else 0
    table = _TABLES[layout](config.max_position_embeddings + offset, config.hidden_size)
    if after_padding:
        table[config.pad_token_id] = 0
    return table


def _marian(positions: int, size: int) -> Tensor:
    """Return the table `[n, d]` with frequencies 10000^(−2i/d), computed in float64."""
    features = torch.arange(size, dtype=torch.float64, device="cpu")
    frequencies = 10000 ** (2 * (features // 2) / size)
    angles = torch.arange(positions, dtype=torch.float64, device="cpu")[:, None] / frequencies
    return torch.cat((angles[:, 0::2].sin(), angles[:, 1::2].cos()), dim=1).float()


def _m2m_100(positions: int, size: int) -> Tensor:
    """Return the table `[n, d]` with frequencies 10000^(−i/(d/2 − 1)), computed in float32."""
    half = size // 2
    step = math.log(10000) / (half - 1)
    frequencies = torch.exp(torch.arange(half, device="cpu").float() * -step)
    angles = torch.arange(positions, device="cpu").float()[:, None] * frequencies
    odd = torch.zeros(positions, size % 2, device="cpu")
    return torch.cat((angles.sin(), angles.cos(), odd), dim=1)


_TABLES = {"marian": _marian, "m2m_100": _m2m_100}
