"""Poolings as sets of rows of a hidden state, as the pooling graph of a device takes them.

Notation: T tokens of all texts, H hidden size, n sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from model.artifact.batch import Ids
from model.artifact.pooling import TextPooling, l2_normalize, modes_of
from model.runtimes.contract import Floats


class Sets(NamedTuple):
    """Rows of a hidden state `[T, H]`, each set of which becomes one vector; int64 `[n]` each."""

    first_row: Ids
    row_count: Ids
    maximum: Ids
    """1 for the largest of each feature, 0 for the mean."""
    first_weight: Ids
    """Weight of the first row in a mean whose weights rise by 1 a row; 0 where they are even."""
    unit_features: Ids
    """As in `TextPooling`."""


def tokens_of(starts: Ids, ends: Ids) -> Ids:
    """The rows of several texts, one text after another."""
    return np.concatenate([np.arange(*each) for each in zip(starts, ends, strict=True)])


def _is_whole(pooling: TextPooling) -> bool:
    """Whether the graph's vector is all of it."""
    return isinstance(pooling.mode, str) and pooling.mode != "mean_sqrt_len_tokens"


def single_modes(pooling: TextPooling) -> list[TextPooling]:
    """A pooling as one a mode, which are normalised together later."""
    if _is_whole(pooling):
        return [pooling]
    return [replace(pooling, mode=mode, unit_features=0) for mode in modes_of(pooling.mode)]


def joined(pooling: TextPooling, parts: Sequence[Floats], ends: Ids) -> Floats:
    """The vectors of a pooling's modes as one."""
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
    """Each pooling of one mode as a set of rows: the first or last token of a text is its mean."""
    texts = np.array([one.text for one in poolings])
    first = ends[texts] + np.array([one.first_token for one in poolings])
    count = ends[texts + 1] - first
    modes = np.array([one.mode for one in poolings])
    return Sets(
        first_row=np.where(modes == "last", first + count - 1, first),
        row_count=np.where((modes == "cls") | (modes == "last"), 1, count),
        maximum=(modes == "max").astype(np.int64),
        first_weight=np.where(modes == "weightedmean", 1 + first - ends[texts], 0),
        unit_features=np.array([one.unit_features for one in poolings], np.int64),
    )
