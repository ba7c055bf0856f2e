"""What an output holds of each text: the arrays of each kind, by name.

Notation: S tokens of one text, H hidden size, L layers, N heads, D features that are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.files.options import Kind
from service.inference.attention.statistics import STATISTICS

Array = NDArray[Any]
TextArrays = tuple[Array, ...]
"""The arrays of one text, in the order of its kind's fields."""
ROWS, LENGTHS = "rows", "lengths"
"""Arrays of every part: the index of each text's row, from 0 over all inputs; and, of ragged
fields, how many entries each text has."""


@dataclass(frozen=True)
class Field:
    """One array of a text."""

    name: str
    """As a column."""
    dtype: str
    """numpy's name of it."""
    ragged: bool = False
    """Whether its first axis is each text's own."""


FIELDS: Mapping[Kind, tuple[Field, ...]] = {
    "pooled": (Field("embedding", "float32"),),
    "tokens": (Field("token_ids", "int32", True), Field("embeddings", "float32", True)),
    "sparse": (Field("indices", "int64", True), Field("values", "float32", True)),
    "stats": tuple(Field(name, "float32") for name in STATISTICS),
    "importance": (Field("importance", "float32"),),
}
"""`[D]`; `[S]` and `[S, H]`; one entry a word whose weight is not 0; `[L, N]` of each statistic;
`[L, N]`."""


def reserved_names(kind: Kind) -> frozenset[str]:
    """The columns that an output adds to the input's."""
    return frozenset(field.name for field in FIELDS[kind])


def joined(kind: Kind, texts: Sequence[TextArrays]) -> dict[str, Array]:
    """The arrays of at least one text, end to end; with `LENGTHS` where they are ragged."""
    found: dict[str, Array] = {}
    for place, field in enumerate(FIELDS[kind]):
        arrays = [np.asarray(text[place], field.dtype) for text in texts]
        found[field.name] = np.concatenate(arrays) if field.ragged else np.stack(arrays)
        if field.ragged:
            found[LENGTHS] = np.array([len(array) for array in arrays], np.int64)
    return found
