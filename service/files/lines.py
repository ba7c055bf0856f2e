"""Sources with one row on each line: plain texts, and JSON objects (https://jsonlines.org)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

from service.files.rows import MOST_ROW_BYTES, Row, Source, text_of

_BOM = b"\xef\xbb\xbf"


def read_lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Yield the number and bytes of each line, without its ending; None if it is too long."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MOST_ROW_BYTES):
            number += 1
            if number == 1:
                line = line.removeprefix(_BOM)
            if line.endswith(b"\n") or len(line) < MOST_ROW_BYTES:
                yield number, line.removesuffix(b"\n").removesuffix(b"\r")
                continue
            while line and not line.endswith(b"\n"):
                line = file.readline(MOST_ROW_BYTES)
            yield number, None


TOO_LONG = f"it is longer than {MOST_ROW_BYTES} bytes"
NOT_UTF8 = "it is not UTF-8"


class TextLines(Source):
    """Source of texts, one on each line; an empty line is an empty text."""

    unit = "line"

    def rows(self, *, whole: bool = False) -> Iterator[Row]:
        """Yield every line; `Row.record` is its text."""
        del whole
        for number, line in read_lines(self.path):
            if line is None:
                yield Row(number, None, TOO_LONG)
                continue
            try:
                text = line.decode()
            except UnicodeDecodeError:
                yield Row(number, None, NOT_UTF8)
            else:
                yield Row(number, text, "", text)

    def json(self, row: Row) -> bytes:
        """Return the text under the column's name."""
        return orjson.dumps({self.column: row.record})[:-1]

    def values(self, rows: Sequence[Row]) -> list[dict[str, object]]:
        """Return the texts under the column's name."""
        return [{self.column: row.record} for row in rows]


class JsonLines(Source):
    """Source of JSON objects, one on each line, without blank lines."""

    unit = "line"

    def rows(self, *, whole: bool = False) -> Iterator[Row]:
        """Yield every object; `Row.record` is its line."""
        del whole
        for number, line in read_lines(self.path):
            if line is None:
                yield Row(number, None, TOO_LONG)
            elif stripped := line.strip():
                text, problem = self._text(stripped)
                yield Row(number, text, problem, stripped)

    def json(self, row: Row) -> bytes:
        """Return the original line, so that numbers keep all digits."""
        line: bytes = row.record
        return line[:-1].rstrip()

    def values(self, rows: Sequence[Row]) -> list[dict[str, object]]:
        """Return the objects."""
        return [orjson.loads(row.record) for row in rows]

    def _text(self, line: bytes) -> tuple[str | None, str]:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            return None, f"it is not JSON: {error.msg}"
        if not isinstance(value, dict):
            return None, "it is not a JSON object"
        if self.column not in value:
            return None, f"it has no {self.column!r}"
        if taken := sorted(self.reserved & value.keys()):
            return None, f"it has {taken[0]!r} already, which the output adds"
        return text_of(value[self.column], self.column)
