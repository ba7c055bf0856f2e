"""Poolings as sets of rows of a hidden state, the inputs of the pooling graph of a device.

Notation: T tokens of all texts, H hidden size, n sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from model.numerics.batch import Ids
from model.numerics.pooling import TextPooling, l2_normalize, modes_of
from model.runtimes.contract import Floats


class Sets(NamedTuple):
    """Sets of rows of a hidden state `[T, H]`, one vector per set; int64 `[n]` each."""

    first_row: Ids
    row_count: Ids
    maximum: Ids
    """Mode of each set: 1 for the maximum of each feature, 0 for the mean."""
    first_weight: Ids
    """Weight of the first row in a mean whose weights rise by 1 per row; 0 for equal weights."""
    unit_features: Ids
    """Number of leading features to scale to unit length, as in `TextPooling`."""


def tokens_of(starts: Ids, ends: Ids) -> Ids:
    """Return the rows of several texts, one text after another."""
    return np.concatenate([np.arange(*bounds) for bounds in zip(starts, ends, strict=True)])


def _is_whole(pooling: TextPooling) -> bool:
    """Return whether the graph's vector is the final one."""
    return isinstance(pooling.mode, str) and pooling.mode != "mean_sqrt_len_tokens"


def single_modes(pooling: TextPooling) -> list[TextPooling]:
    """Split a pooling into poolings of one mode each, to be normalised together later."""
    if _is_whole(pooling):
        return [pooling]
    return [replace(pooling, mode=mode, unit_features=0) for mode in modes_of(pooling.mode)]


def joined(pooling: TextPooling, parts: Sequence[Floats], ends: Ids) -> Floats:
    """Join the vectors of a pooling's modes."""
    if _is_whole(pooling):
        return parts[0]
    count = ends[pooling.text + 1] - ends[pooling.text] - pooling.first_token
    root = {"mean_sqrt_len_tokens": np.sqrt(np.float32(count))}
    scaled = [
        part * root.get(mode, np.float32(1))
        for part, mode in zip(parts, modes_of(pooling.mode), strict=True)
    ]
    vector = np.concatenate(scaled)
    n = pooling.unit_features
    if n:
        vector[:n] = l2_normalize(vector[:n])
    return vector


def sets_of(poolings: Sequence[TextPooling], ends: Ids) -> Sets:
    """Return poolings of one mode as sets of rows; `cls` and `last` are the mean of one row."""
    texts = np.array([pooling.text for pooling in poolings])
    first = ends[texts] + np.array([pooling.first_token for pooling in poolings])
    count = ends[texts + 1] - first
    modes = np.array([pooling.mode for pooling in poolings])
    return Sets(
        first_row=np.where(modes == "last", first + count - 1, first),
        row_count=np.where((modes == "cls") | (modes == "last"), 1, count),
        maximum=(modes == "max").astype(np.int64),
        first_weight=np.where(modes == "weightedmean", 1 + first - ends[texts], 0),
        unit_features=np.array([pooling.unit_features for pooling in poolings], np.int64),
    )
