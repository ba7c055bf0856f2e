"""Parquet files, by pyarrow: rows of the input, and output with the arrays of each text as lists.

Notation: S tokens of one text, H hidden size, L layers, N heads, D output features.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import BinaryIO

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from service.files.options import LENGTHS, NO_METADATA, Array, Kind, UsageError, columns_of
from service.files.parts import Part, with_rows
from service.files.rows import InputFailure, Row, Source, batches, text_of
from service.inference.outputs.field import Field

BATCH_ROWS = 512
_BUFFER_BYTES = 2**20
_UNFIT = (pa.ArrowException, OverflowError)
"""Exceptions of pyarrow for values that a type cannot hold."""


class ParquetRows(Source):
    """Source of the rows of all row groups, read in small batches."""

    def rows(self, *, whole: bool = False) -> Iterator[Row]:
        """Yield every row; `Row.record` is its batch and its index in the batch."""
        try:
            with pq.ParquetFile(self.path, buffer_size=_BUFFER_BYTES) as file:
                self._check(file.schema_arrow)
                columns = None if whole else [self.column]
                number = 0
                for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                    texts = batch.column(self.column)
                    for place in range(len(batch)):
                        number += 1
                        text, problem = self._text(texts[place])
                        yield Row(self, number, text, problem, (batch, place))
        except pa.ArrowException as error:
            raise InputFailure(f"{self.name} is not a readable Parquet file: {error}") from None

    def schema(self) -> pa.Schema:
        """Return the file's columns."""
        schema: pa.Schema = pq.read_schema(self.path)
        return schema

    def table(self, rows: Sequence[Row]) -> pa.Table:
        """Return rows as a table with the file's types."""
        batches = []
        for _, group in itertools.groupby(rows, key=lambda row: id(row.record[0])):
            records = [row.record for row in group]
            batches.append(records[0][0].take(pa.array([place for _, place in records])))
        return pa.Table.from_batches(batches)

    def check_json(self) -> None:
        """Convert every column of the rows that have a text."""
        for batch in batches(row for row in self.rows(whole=True) if not row.problem):
            table = self.table(batch)
            for name, column in zip(table.column_names, table.columns, strict=True):
                try:
                    _check_numbers(values := column.to_pylist())
                    orjson.dumps(values)
                except (TypeError, ValueError, OverflowError) as error:
                    raise InputFailure(
                        f"{self.name}, column {name!r}, rows {batch[0].number} to "
                        f"{batch[-1].number}: JSON has no such value ({error}): write .parquet"
                    ) from None

    def values(self, rows: Sequence[Row]) -> list[dict[str, object]]:
        """Return rows as Python values by column name."""
        values: list[dict[str, object]] = self.table(rows).to_pylist()
        return values

    def _text(self, value: pa.Scalar) -> tuple[str | None, str]:
        try:
            return text_of(value.as_py(), self.column)
        except UnicodeDecodeError:
            return None, "it is not UTF-8"

    def _check(self, schema: pa.Schema) -> None:
        self.check_columns(schema.names)
        kind = schema.field(self.column).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise UsageError(f"{self.name}: column {self.column!r} is {kind}, not of texts")


def _check_numbers(value: object) -> None:
    """Raise ValueError if a number in a value, however deep, is not finite."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"the number is {value}")
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_numbers(inner)


class Schema:
    """Columns of all inputs together, inferred while rows are read."""

    def __init__(self) -> None:
        self.columns: pa.Schema | None = None
        self.widened = False
        """Whether a later row has changed the type of a column."""
        self._last: Source | None = None

    def add(self, source: Source, rows: Sequence[Row]) -> None:
        """Add the columns of rows, all of whose values a type has to hold."""
        if isinstance(source, ParquetRows):
            self._add_file(source)
        elif rows:
            try:
                self._unify(pa.schema(list(pa.array(source.values(rows)).type)))
            except _UNFIT as error:
                raise self._unfit(source, rows, error) from None

    def try_columns(self, sources: Sequence[Source]) -> None:
        """Raise InputFailure if Parquet lacks the columns' types, or a type cannot hold a row."""
        content = io.BytesIO()
        try:
            pq.write_table((self.columns or pa.schema([])).empty_table(), content)
            pq.read_schema(content)
        except (pa.ArrowException, OSError) as error:
            raise InputFailure(
                f"Parquet cannot hold the input's columns ({error}): write .jsonl"
            ) from None
        for source in sources if self.widened else ():
            for rows in batches(row for row in source.rows() if not row.problem):
                try:
                    self.table(rows)
                except _UNFIT as error:
                    raise self._unfit(source, rows, error) from None

    def table(self, rows: Sequence[Row]) -> pa.Table:
        """Return rows as a table of these columns, converted in runs of rows from one file."""
        runs = itertools.groupby(rows, key=attrgetter("source"))
        return pa.concat_tables(self._table(source, list(own)) for source, own in runs)

    def _table(self, source: Source, rows: Sequence[Row]) -> pa.Table:
        if isinstance(source, ParquetRows):
            return source.table(rows)
        schema = self.columns or pa.schema([])
        values = pa.array(source.values(rows), pa.struct(list(schema)))
        return pa.Table.from_arrays(values.flatten(), schema=schema)

    def _add_file(self, source: ParquetRows) -> None:
        if source is self._last:
            return
        self._last = source
        schema = source.schema().remove_metadata()
        if self.columns is not None and not self.columns.equals(schema):
            raise UsageError(f"{source.name} has other columns than the files before it")
        self.columns = schema

    def _unify(self, own: pa.Schema) -> None:
        if self.columns is not None:
            both = pa.unify_schemas([self.columns, own], promote_options="permissive")
            parts = [*self.columns, *own]
            self.widened |= any(both.field(part.name).type != part.type for part in parts)
            own = both
        self.columns = own

    def _unfit(self, source: Source, rows: Sequence[Row], error: Exception) -> InputFailure:
        return InputFailure(
            f"{source.name}, {source.unit}s {rows[0].number} to {rows[-1].number}: a column of "
            f"Parquet has one type, which does not hold all values ({error}): write .jsonl"
        )


GROUP_BYTES = 16 * 2**20
"""Approximate bytes of arrays in a row group, which readers load as a whole."""


def write_parquet(
    file: BinaryIO,
    kind: Kind,
    schema: Schema,
    parts: Sequence[Part],
    rows: Iterator[Row],
    metadata: Mapping[str, str] = NO_METADATA,
) -> None:
    """Write a row for each text; neighbouring parts share a row group."""
    fields = columns_of(kind)
    writer: pq.ParquetWriter | None = None
    group: list[pa.Table] = []
    try:
        for own, arrays in with_rows(parts, rows):
            table = _with_arrays(schema.table(own), fields, arrays)
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
