"""Fields of outputs: the arrays of a text for each kind of output, by name.

Notation: S tokens of one text, H hidden size, L layers, N heads, D output features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.files.options import Kind
from service.inference.attention.statistics import STATISTICS

Array = NDArray[np.generic]
TextArrays = tuple[Array, ...]
"""Arrays of a text, in the order of its kind's fields."""
ROWS, ROW, LENGTHS = "rows", "row", "lengths"
"""Names of arrays of every part: the index of each text's row, from 0 over all inputs, the same as
a column of chunks, and the number of entries of each text in ragged fields."""


FINGERPRINT = "model_fingerprint"
"""Key of the model's fingerprint in the metadata of Parquet and safetensors files."""
NO_METADATA: Mapping[str, str] = {}


@dataclass(frozen=True)
class Field:
    """Array of a text."""

    name: str
    """Name of the field as a column."""
    dtype: str | None
    """Name of the dtype in numpy; None for the dtype of the computed arrays."""
    ragged: bool = False
    """Whether the length of the first axis differs between texts."""


FIELDS: Mapping[Kind, tuple[Field, ...]] = {
    "pooled": (Field("embedding", None),),
    "chunks": (Field("start", "int64"), Field("end", "int64"), Field("embedding", None)),
    "tokens": (Field("token_ids", "int32", True), Field("embeddings", "float32", True)),
    "sparse": (Field("indices", "int64", True), Field("values", "float32", True)),
    "multivector": (Field("multivector", "float32", True),),
    "stats": tuple(Field(name, "float32") for name in STATISTICS),
    "importance": (Field("importance", "float32"),),
}
"""Kind of output → fields of a text: `[D]`; `[n]`, `[n]` and `[n, D]` of n chunks; `[S]` and
`[S, H]`; one entry for each word with non-zero weight; `[n, D]` of n tokens; `[L, N]` for each
statistic; `[L, N]`."""


def columns_of(kind: Kind) -> tuple[Field, ...]:
    """Return the columns that an output adds to the input's; chunks have the row of their text."""
    return (Field(ROW, "int64"), *FIELDS[kind]) if kind == "chunks" else FIELDS[kind]


def reserved_names(kind: Kind) -> frozenset[str]:
    """Return the names of the columns that an output adds to the input's."""
    return frozenset(field.name for field in columns_of(kind))


def joined(kind: Kind, rows: Sequence[int], texts: Sequence[TextArrays]) -> dict[str, Array]:
    """Concatenate the arrays of at least one text, with `LENGTHS` for ragged fields, and `ROWS`.

    Args:
        kind: kind of output; each chunk of a text has a row of its own.
        rows: index of each text's row.
        texts: arrays of each text.

    """
    columns: dict[str, Array] = {ROWS: np.array(rows, np.int64)}
    if kind == "chunks":
        columns[ROWS] = np.repeat(columns[ROWS], [len(text[0]) for text in texts])
        for field, *arrays in zip(FIELDS[kind], *texts, strict=True):
            columns[field.name] = np.concatenate(arrays)
        return columns
    for place, field in enumerate(FIELDS[kind]):
        arrays = [np.asarray(text[place], field.dtype) for text in texts]
        columns[field.name] = np.concatenate(arrays) if field.ragged else np.stack(arrays)
        if field.ragged:
            columns[LENGTHS] = np.array([len(array) for array in arrays], np.int64)
    return columns
