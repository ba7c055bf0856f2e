"""Parquet output with the input's columns, and the arrays of each text as lists.

Notation: S tokens of one text, H hidden size, L layers, N heads, D output features.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from service.files.columns import with_rows
from service.files.fields import LENGTHS, NO_METADATA, Array, Field, columns_of
from service.files.inputs import Place
from service.files.options import Kind
from service.files.parquet import Schema
from service.files.parts import Part

GROUP_BYTES = 16 * 2**20
"""Approximate bytes of arrays in a row group, which readers load as a whole."""


def write_parquet(
    file: BinaryIO,
    kind: Kind,
    schema: Schema,
    parts: Sequence[Part],
    places: Iterable[Place],
    metadata: Mapping[str, str] = NO_METADATA,
) -> None:
    """Write a row for each text; neighbouring parts share a row group."""
    fields = columns_of(kind)
    writer: pq.ParquetWriter | None = None
    group: list[pa.Table] = []
    try:
        for rows, arrays in with_rows(parts, places):
            table = _with_arrays(_columns(schema, rows), fields, arrays)
            if writer is None:
                added = {field.name for field in fields}
                kept = [name for name in table.column_names if name not in added]
                of_file = table.schema.with_metadata({**(table.schema.metadata or {}), **metadata})
                writer = pq.ParquetWriter(file, of_file, use_dictionary=kept)
            group.append(table)
            if sum(part_table.nbytes for part_table in group) >= GROUP_BYTES:
                _write(writer, group)
        if group:
            _write(writer, group)
    finally:
        if writer is not None:
            writer.close()


def _write(writer: pq.ParquetWriter, group: list[pa.Table]) -> None:
    table = pa.concat_tables(group)
    writer.write_table(table, row_group_size=len(table))
    group.clear()


def _columns(schema: Schema, rows: Sequence[Place]) -> pa.Table:
    """Return a table of the input's columns, converted in runs of rows from one file."""
    groups = itertools.groupby(rows, key=lambda place: id(place.source))
    tables = []
    for _, group in groups:
        places = list(group)
        tables.append(schema.table(places[0].source, [place.row for place in places]))
    return pa.concat_tables(tables)


def _with_arrays(table: pa.Table, fields: Sequence[Field], arrays: dict[str, Array]) -> pa.Table:
    for field in fields:
        column = _nested(arrays[field.name])
        if field.ragged:
            ends = np.concatenate([[0], np.cumsum(arrays[LENGTHS])]).astype(np.int32)
            column = pa.ListArray.from_arrays(pa.array(ends), column)
        table = table.append_column(field.name, column)
    return table


def _nested(values: Array) -> pa.Array:
    """Convert `[n]` to a column of numbers, `[n, D]` to fixed-size lists, and so on."""
    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in reversed(values.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column
