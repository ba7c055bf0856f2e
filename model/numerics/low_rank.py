"""Weights of an artifact with one low-rank adapter. numpy only.

`weights.safetensors` has `….low_rank.NAME.down.weight` and `….up.weight` for a map `….NAME.weight`,
and `heads.safetensors` has `NAME_down.LAYER` and `NAME_up.LAYER` for `NAME_weight.LAYER`: matrices
of all adapters side by side. See `model.low_rank`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from model.config.encoder import EncoderConfig

Floats = NDArray[np.float32]
_KEYS = (
    (re.compile(r"^(.+)\.([a-z]+)\.weight$"), r"\1.low_rank.\2.{}.weight"),
    (re.compile(r"^([a-z]+)_weight\.(\d+)$"), r"\1_{}.\2"),
)
"""Pattern of a weight's key → key of its low-rank matrices."""


class AdaptedTensors(Mapping[str, Floats]):
    """Tensors of a file; a weight W with an adapter is W + B_k A_k, computed at each access."""

    def __init__(self, tensors: Mapping[str, Floats], adapter: int, rank: int) -> None:
        """Keep the tensors by key, the number of the adapter, 1 … K, and its rank."""
        self._tensors = tensors
        self._part = slice(rank * (adapter - 1), rank * adapter)

    def __getitem__(self, key: str) -> Floats:
        """Return the tensor of a key, with the adapter's addition if it has one."""
        own, part = self._tensors[key], self._part
        for pattern, low_rank in _KEYS:
            down, up = (pattern.sub(low_rank.format(name), key) for name in ("down", "up"))
            if down != key and down in self._tensors:
                added = self._tensors[up][..., part] @ self._tensors[down][..., part, :]
                return own + added
        return own

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._tensors)


def of_segment(
    tensors: Mapping[str, Floats], segment: int, config: EncoderConfig
) -> Mapping[str, Floats]:
    """Return the tensors of a file for texts of a segment, which may have an adapter of its own."""
    if not segment or config.adapters is None:
        return tensors
    return AdaptedTensors(tensors, segment, config.adapters.rank)
