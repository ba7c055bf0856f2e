"""Attention weights among the outputs of a foreign graph, recognised by their values.

Names follow no standard: `attentions.0`, `attention_0`, or a number alone. Attention weights are
recognised by their shape and by rows that sum to 1; their names give the order of layers.

Notation: B texts, N heads, S tokens of the longest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from model.artifact.signature import Dtype, TensorSpec
from model.errors import ConfigError

FLOATS: Mapping[str, Dtype] = {"float32": "float32", "float16": "float16"}
_NAMED = re.compile(r"attention|attn", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)\D*$")
ROUNDING = 0.01
"""Largest allowed difference of a row's sum from 1, in any precision."""


def attentions(
    outputs: Mapping[str, NDArray[np.generic]], source: object
) -> tuple[TensorSpec, ...]:
    """Return the outputs with attention weights, one per layer, in order; may be none.

    Args:
        outputs: all outputs of a trial, on B texts of S tokens.
        source: name of the graph in error messages.

    Raises:
        ConfigError: an output is named attention but holds other values, or layers differ in their
            heads.

    """
    layers = {name: array for name, array in outputs.items() if _is_map(array)}
    named = [name for name, array in outputs.items() if array.ndim == 4 and _NAMED.search(name)]
    if wrong := [name for name in named if name not in layers]:
        raise ConfigError(
            f"{source}: its output {wrong[0]} is called attention, and has no rows that sum to 1 "
            "for each head and token: export it without, or with attention weights"
        )
    heads = {array.shape[1] for array in layers.values()}
    if len(heads) > 1:
        raise ConfigError(
            f"{source}: its attention weights ({', '.join(layers)}) are of layers with different "
            f"numbers of heads ({', '.join(map(str, sorted(heads)))}): export it without them"
        )
    return tuple(
        TensorSpec(
            name=name,
            dtype=FLOATS[layers[name].dtype.name],
            axes=("batch", layers[name].shape[1], "sequence", "sequence"),
        )
        for name in _in_order(list(layers))
    )


def row_sums_off(maps: NDArray[np.generic]) -> float:
    """Return the largest difference of a row's sum from 1, of `[…, S]`; infinite if invalid."""
    if not np.isfinite(maps).all() or maps.min(initial=0) < 0:
        return float("inf")
    return float(np.abs(maps.sum(axis=-1, dtype=np.float64) - 1).max(initial=0))


def _is_map(array: NDArray[np.generic]) -> bool:
    """Return whether an output holds attention weights `[B, N, S, S]`."""
    if array.ndim != 4 or array.shape[2] != array.shape[3] or array.dtype.name not in FLOATS:
        return False
    return row_sums_off(array) <= ROUNDING


def _in_order(names: list[str]) -> list[str]:
    """Sort by the last number of each name; keep the order if one has none or two are equal."""
    numbers = [int(match[1]) if (match := _NUMBER.search(name)) else None for name in names]
    if None in numbers or len({*numbers}) < len(names):
        return names
    return [name for _, name in sorted(zip(numbers, names, strict=True))]
