"""The outputs of a foreign graph that are attention weights, known by what they hold.

Names are of no standard: `attentions.0`, `attention_0`, or a number alone. What tells them is
their shape, and that rows sum to 1; names tell the order of layers.

Notation: B texts, N heads, S tokens of the longest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.artifact.signature import Dtype, TensorSpec
from model.errors import ConfigError

FLOATS: Mapping[str, Dtype] = {"float32": "float32", "float16": "float16"}
_NAMED = re.compile(r"attention|attn", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)\D*$")
ROUNDING = 0.01
"""How far a row's sum may be from 1 in a graph of any precision."""


def attentions(found: Mapping[str, NDArray[Any]], source: object) -> tuple[TensorSpec, ...]:
    """The outputs with attention weights, a layer each, in order; none where there are none.

    Args:
        found: all outputs of a trial, on B texts of S tokens.
        source: what the graph is called in a refusal.

    Raises:
        ConfigError: an output is called attention and holds none, or layers differ in their heads.

    """
    layers = {name: array for name, array in found.items() if _is_map(array)}
    named = [name for name, array in found.items() if array.ndim == 4 and _NAMED.search(name)]
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


def row_sums_off(maps: NDArray[Any]) -> float:
    """How far the sum of any row is from 1, of weights `[…, S]`; infinite where one is none."""
    if not np.isfinite(maps).all() or maps.min(initial=0) < 0:
        return float("inf")
    return float(np.abs(maps.sum(axis=-1, dtype=np.float64) - 1).max(initial=0))


def _is_map(array: NDArray[Any]) -> bool:
    """Whether an output is `[B, N, S, S]` of weights."""
    if array.ndim != 4 or array.shape[2] != array.shape[3] or array.dtype.name not in FLOATS:
        return False
    return row_sums_off(array) <= ROUNDING


def _in_order(names: list[str]) -> list[str]:
    """By the last number of each name; as they stand where one has none, or two have the same."""
    numbers = [int(match[1]) if (match := _NUMBER.search(name)) else None for name in names]
    if None in numbers or len({*numbers}) < len(names):
        return names
    return [name for _, name in sorted(zip(numbers, names, strict=True))]
