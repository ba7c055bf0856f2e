"""Rows of the input, each with a text or an error."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_ROW_BYTES = 16 * 2**20
"""Maximum bytes of a row; longer rows are invalid, and are never in memory as a whole."""


class InputFailure(ValueError):
    """Input that cannot be read, or has an invalid row."""


@dataclass(frozen=True, slots=True)
class Row:
    """Row of a file."""

    number: int
    """Number of the line or record, from 1, without the header."""
    text: str | None
    """Text of the row, or the path of its picture; None if the row is invalid."""
    problem: str = ""
    """Reason for which the row is invalid; or empty."""
    record: Any = None
    """All columns of the row, in a format of the source."""


class Source(ABC):
    """File of rows that can be read repeatedly."""

    unit = "row"
    """Unit that row numbers count, for messages."""
    pictures = False
    """Whether the rows name pictures, by paths from the file's folder."""

    def __init__(self, path: Path, name: str, column: str, reserved: frozenset[str]) -> None:
        """Describe a file, without reading it.

        Args:
            path: path of the file.
            name: name of the file in messages.
            column: column of the texts.
            reserved: names of columns that the output adds, and no row may have.

        """
        self.path, self.name, self.column, self.reserved = path, name, column, reserved

    @abstractmethod
    def rows(self, *, whole: bool = False) -> Iterator[Row]:
        """Yield every row in order.

        Args:
            whole: whether rows need their records.

        Raises:
            InputFailure: the file is not valid in its format.
            UsageError: the column of texts is missing, or a reserved column is present.

        """

    @abstractmethod
    def json(self, row: Row) -> bytes:
        """Return the record as a non-empty JSON object without its closing brace."""

    @abstractmethod
    def values(self, rows: Sequence[Row]) -> list[dict[str, object]]:
        """Return records as values by column name."""

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
