"""Inputs of a request: texts, pairs of texts, token ids, and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids of a text, special tokens included."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """Picture as an encoded file, such as PNG or JPEG."""

    data: bytes
    first_frame: bool = False
    """Whether an animated file stands for its first frame, and is not refused."""


TextOrPair = str | tuple[str, str]
TextInput = TextOrPair | TokenIds
Input = TextInput | Picture


def size_of(given: Input) -> int:
    """Return the number of characters of a text, of token ids, or of bytes of a picture's file."""
    if isinstance(given, str):
        return len(given)
    if isinstance(given, TokenIds):
        return len(given.ids)
    return len(given.data) if isinstance(given, Picture) else sum(map(len, given))


def sizes_of(inputs: Sequence[Input]) -> list[int]:
    """Return the size of each input; see `size_of`."""
    return [*map(len if {*map(type, inputs)} == {str} else size_of, inputs)]  # type: ignore[arg-type]


def characters(inputs: Sequence[Input]) -> int:
    """Return the size of all inputs; see `size_of`."""
    return sum(sizes_of(inputs))
