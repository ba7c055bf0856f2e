"""Records of CSV files (RFC 4180), whose first record names the columns.

All values are texts, as CSV does not mark numbers.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

import orjson

from service.files.lines import NOT_UTF8
from service.files.options import UsageError
from service.files.rows import MOST_ROW_BYTES, InputFailure, Row, Source

_LOST = "field larger than field limit"


class CsvRecords(Source):
    """Source of the records after the header, without empty lines."""

    _header: Sequence[str] = ()

    def rows(self, *, whole: bool = False) -> Iterator[Row]:
        """Yield every record; `Row.record` is the list of its fields."""
        del whole
        csv.field_size_limit(MOST_ROW_BYTES)
        with self.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(file, strict=True)
            place = self._read_header(reader)
            number = 0
            while True:
                try:
                    fields = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    number += 1
                    if str(error).startswith(_LOST):
                        raise InputFailure(
                            f"{self.where(number)}, line {reader.line_num}: a quote is not closed "
                            "within 16 MiB, so that the records after it cannot be separated"
                        ) from None
                    yield Row(number, None, f"it is not CSV: {error}")
                    continue
                if fields:
                    number += 1
                    problem = self._problem(fields)
                    yield Row(number, None if problem else fields[place], problem, fields)

    def json(self, row: Row) -> bytes:
        """Return the fields by column name."""
        return orjson.dumps(dict(zip(self._header, row.record, strict=True)))[:-1]

    def values(self, rows: Sequence[Row]) -> list[dict[str, object]]:
        """Return the fields by column name."""
        return [dict(zip(self._header, row.record, strict=True)) for row in rows]

    def _read_header(self, reader: Iterator[list[str]]) -> int:
        """Read the header, and return the index of the texts' column."""
        header = next(reader, [])
        if len(set(header)) < len(header):
            raise UsageError(f"{self.name}: two columns have the same name")
        if self.column not in header:
            raise UsageError(
                f"{self.name} has no column {self.column!r}: --column names one of "
                f"{', '.join(header) or 'none'}"
            )
        if taken := sorted(self.reserved.intersection(header)):
            raise UsageError(f"{self.name} has a column {taken[0]!r}, which the output adds")
        self._header = header
        return header.index(self.column)

    def _problem(self, fields: Sequence[str]) -> str:
        if len(fields) != len(self._header):
            return f"it has {len(fields)} fields, the header {len(self._header)}"
        if not all(map(_encodes, fields)):
            return NOT_UTF8
        return ""


def _encodes(field: str) -> bool:
    return field.isascii() or not any("\udc80" <= character <= "\udcff" for character in field)
