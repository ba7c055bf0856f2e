"""Weights of an artifact with one low-rank adapter. numpy only.

`weights.safetensors` has `….adapters.NAME.down.weight` and `….up.weight` for a map `….NAME.weight`,
and `heads.safetensors` has `NAME_down.LAYER` and `NAME_up.LAYER` for `NAME_weight.LAYER`: matrices
of all adapters side by side. See `model.adapters`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from model.config.encoder import AdapterLayout

Floats = NDArray[np.float32]
_KEYS = (
    (re.compile(r"^(.+)\.([a-z]+)\.weight$"), r"\1.adapters.\2.{}.weight"),
    (re.compile(r"^([a-z]+)_weight\.(\d+)$"), r"\1_{}.\2"),
)
"""Pattern of a weight's key → key of its low-rank matrices."""


class AdaptedTensors(Mapping[str, Floats]):
    """Tensors of a file; a weight W with an adapter is W + B_k A_k, computed at each access."""

    def __init__(self, tensors: Mapping[str, Floats], adapter: int, rank: int) -> None:
        """Keep the tensors.

        Args:
            tensors: tensors of a file by key.
            adapter: number k of the adapter, 1 … K.
            rank: its number of features.

        """
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


def with_adapter(
    tensors: Mapping[str, Floats], adapter: int, layout: AdapterLayout | None
) -> Mapping[str, Floats]:
    """Return the tensors of a file with an adapter.

    Args:
        tensors: tensors by key.
        adapter: number of the adapter, 1 … K; 0 for the tensors themselves.
        layout: number and rank of the adapters; None without adapters.

    """
    if not adapter or layout is None:
        return tensors
    return AdaptedTensors(tensors, adapter, layout.rank)
