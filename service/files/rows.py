"""Rows of the input, each with a text or an error: lines, JSON objects, CSV records, and pictures.

Formats: https://jsonlines.org and RFC 4180, with the names of the columns in the first record.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from service.files.options import Refused, UsageError

MOST_ROW_BYTES = 16 * 2**20
"""Maximum bytes of a row; longer rows are invalid, and are never in memory as a whole."""


class InputFailure(ValueError):
    """Input that cannot be read, or has an invalid row."""


@dataclass(frozen=True, slots=True)
class Row:
    """Row of a file."""

    source: Source
    number: int
    """Number of the line or record, from 1, without the header."""
    text: str | None
    """Text of the row, or the path of its picture; None if the row is invalid."""
    problem: str = ""
    """Reason for which the row is invalid; or empty."""
    record: Any = None
    """All columns of the row, in a format of the source."""

    @property
    def where(self) -> str:
        """Name of the row in messages."""
        return self.source.where(self.number)


class Source(ABC):
    """File of rows that can be read repeatedly."""

    unit = "row"
    """Unit that row numbers count, for messages."""
    pictures = False
    """Whether the rows name pictures, by paths from the file's folder."""

    def __init__(self, path: Path, name: str, column: str, reserved: frozenset[str]) -> None:
        """Describe a file, without reading it.

        `name` is its name in messages; no row may have a column in `reserved`, which the output
        adds.
        """
        self.path, self.name, self.column, self.reserved = path, name, column, reserved

    @abstractmethod
    def rows(self, *, whole: bool = False) -> Iterator[Row]:
        """Yield every row in order; with `whole`, rows have their records.

        An `InputFailure` is raised for a file that is not valid in its format.
        """

    def json(self, row: Row) -> bytes:
        """Return the record as a non-empty JSON object without its closing brace."""
        (values,) = self.values([row])
        return orjson.dumps(values)[:-1]

    def values(self, rows: Sequence[Row]) -> list[dict[str, object]]:
        """Return records as values by column name."""
        return [{self.column: row.record} for row in rows]

    def given(self, row: Row) -> str:
        """Return what is encoded: the text of a valid row, or the path of its picture."""
        text = row.text or ""
        return str(self.path.parent / text) if self.pictures else text

    def sha256(self) -> str:
        """Return the SHA-256 of the content."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def state(self) -> tuple[int, int]:
        """Return the size and the modification time."""
        status = self.path.stat()
        return status.st_size, status.st_mtime_ns

    def check_json(self) -> None:  # noqa: B027 - only records of Parquet may not fit JSON
        """Check that JSON can hold every record."""

    def where(self, number: int) -> str:
        """Return the name of a row in messages."""
        return f"{self.name}, {self.unit} {number}"

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise UsageError if the column of texts is missing, or a reserved column is present."""
        if self.column not in names:
            raise UsageError(
                f"{self.name} has no column {self.column!r}: --column names one of "
                f"{', '.join(names) or 'none'}"
            )
        if taken := sorted(self.reserved.intersection(names)):
            raise UsageError(f"{self.name} has a column {taken[0]!r}, which the output adds")


BATCH_ROWS = 1024
"""Number of rows whose columns are converted together."""


def batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Yield rows in lists of at most `BATCH_ROWS`."""
    while batch := list(itertools.islice(rows, BATCH_ROWS)):
        yield batch


def text_of(value: object, column: str) -> tuple[str | None, str]:
    """Return the text of a column's value and an empty error, or None and an error."""
    if isinstance(value, str):
        return value, ""
    return None, f"{column!r} is {_WORDS.get(type(value), 'no text')}, not a text"


_WORDS = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


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
            row = Row(self, number, None, TOO_LONG) if line is None else self._row(number, line)
            if row:
                yield row

    def _row(self, number: int, line: bytes) -> Row | None:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            return Row(self, number, None, NOT_UTF8)
        return Row(self, number, text, "", text)


class JsonLines(TextLines):
    """Source of JSON objects, one on each line, without blank lines; `Row.record` is the line."""

    def _row(self, number: int, line: bytes) -> Row | None:
        line = line.strip()
        return Row(self, number, *self._text(line), line) if line else None

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
                fields, problem = list[str](), ""
                try:
                    fields = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    if str(error).startswith(_LOST):
                        raise InputFailure(
                            f"{self.where(number + 1)}, line {reader.line_num}: a quote is not "
                            "closed within 16 MiB, so that the records after it cannot be separated"
                        ) from None
                    problem = f"it is not CSV: {error}"
                if fields or problem:
                    number += 1
                    problem = problem or self._problem(fields)
                    yield Row(self, number, None if problem else fields[place], problem, fields)

    def values(self, rows: Sequence[Row]) -> list[dict[str, object]]:
        """Return the fields by column name."""
        return [dict(zip(self._header, row.record, strict=True)) for row in rows]

    def _read_header(self, reader: Iterator[list[str]]) -> int:
        """Read the header, and return the index of the texts' column."""
        header = next(reader, [])
        if len(set(header)) < len(header):
            raise UsageError(f"{self.name}: two columns have the same name")
        self.check_columns(header)
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


ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".jfif", ".webp", ".gif", ".bmp"})
"""Endings, in lower case, of the files that are taken from a folder or glob."""


class PictureFiles(Source):
    """Source of pictures, one in each file; the column has their paths."""

    unit = "picture"
    pictures = True

    def __init__(
        self, name: str, paths: Sequence[Path], column: str | None, reserved: frozenset[str]
    ) -> None:
        """Find the pictures of files, and of folders with subfolders; `name` is in messages."""
        super().__init__(paths[0], name, column or "image", reserved)
        if self.column in reserved:
            raise UsageError(f"--image-column {column} is a column that the output adds")
        self.left_out = 0
        """Number of files in the folders that are hidden or lack a picture's ending."""
        self._files: list[Path] = []
        for path in paths:
            if path.is_dir():
                self._search(path)
            else:
                self._files.append(path)

    def _search(self, folder: Path) -> None:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        pictures = [
            path
            for path in files
            if path.suffix.lower() in ENDINGS
            and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        ]
        if not pictures:
            raise UsageError(f"{folder} has no picture: endings are {', '.join(sorted(ENDINGS))}")
        self.left_out += len(files) - len(pictures)
        self._files += pictures

    def rows(self, *, whole: bool = False) -> Iterator[Row]:
        """Yield every picture; `Row.record` is its path."""
        del whole
        for number, path in enumerate(self._files, 1):
            yield Row(self, number, str(path), "", str(path))

    def given(self, row: Row) -> str:
        """Return the path of the row's picture."""
        return row.text or ""

    def sha256(self) -> str:
        """Return the SHA-256 of the paths."""
        return hashlib.sha256("\n".join(map(str, self._files)).encode()).hexdigest()

    def state(self) -> tuple[int, int]:
        """Return the number of pictures; `state_of_pictures` has their sizes and times."""
        return len(self._files), 0

    def where(self, number: int) -> str:
        """Return the path of a picture."""
        return str(self._files[number - 1])


def is_of_pictures(path: Path) -> bool:
    """Return whether a path is a folder, or has a picture's ending."""
    return path.is_dir() or path.suffix.lower() in ENDINGS


def state_of_pictures(source: Source) -> str:
    """Return the SHA-256 of the paths, sizes and modification times of all pictures."""
    digest = hashlib.sha256()
    for row in source.rows():
        if row.text is not None:
            path = Path(source.given(row))
            status = path.stat() if path.is_file() else None
            state = (status.st_size, status.st_mtime_ns) if status else None
            digest.update(f"{path}\0{state}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def read_picture(path: str, max_bytes: int) -> bytes | Refused:
    """Return the content of a picture's file, or its rejection."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        return Refused(f"{path}: {error.strerror}")
    if len(data) > max_bytes:
        return Refused(f"{path} has more than {max_bytes} bytes")
    return data
