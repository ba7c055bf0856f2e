"""Rows of the input: a text each, or what is wrong with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_ROW_BYTES = 16 * 2**20
"""Of a line; a longer one is no text, and never in memory whole."""


class InputFailure(ValueError):
    """An input that cannot be read on."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file."""

    number: int
    """From 1, as its reader counts: lines, or records without a header."""
    text: str | None
    """None where it has none."""
    problem: str = ""
    """Why it has no text."""
    record: Any = None
    """All of the row, in its source's own form."""


class Source(ABC):
    """One file of rows, which can be read any number of times."""

    unit = "row"
    """What its numbers count."""

    def __init__(self, path: Path, name: str, column: str, reserved: frozenset[str]) -> None:
        """Read nothing yet.

        Args:
            path: of the file.
            name: of the file in messages.
            column: of the texts.
            reserved: columns that the output adds, and no row may have.

        """
        self.path, self.name, self.column, self.reserved = path, name, column, reserved

    @abstractmethod
    def rows(self, *, whole: bool = False) -> Iterator[Row]:
        """Every row in order.

        Args:
            whole: whether records are wanted; else they may be left out.

        Raises:
            InputFailure: the file is not of its format, or cannot be read on after some row.
            UsageError: it has no such column, or one that is reserved.

        """

    @abstractmethod
    def json(self, row: Row) -> bytes:
        """The record as a JSON object without its closing brace; never empty."""

    @abstractmethod
    def values(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The records as columns and values."""

    def check_json(self) -> None:  # noqa: B027 - the others were JSON or texts
        """Check that JSON can hold every record; it can hold all but those of Parquet.

        Raises:
            InputFailure: it cannot hold a value.

        """

    def where(self, number: int) -> str:
        """A row in a message."""
        return f"{self.name}, {self.unit} {number}"


def text_of(value: Any, column: str) -> tuple[str | None, str]:
    """The text of a column's value, or what is wrong with it."""
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
