"""What is tokenised: texts, pairs of texts, and texts by their token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A text by the ids of its tokens, special ones included."""

    ids: tuple[int, ...]


Text = str | tuple[str, str]
Input = Text | TokenIds


def characters(inputs: Sequence[Input]) -> int:
    """Return the number of characters of all inputs; an id counts as one."""
    return sum(map(size_of, inputs))


def size_of(given: Input) -> int:
    """Return the number of characters of an input, or of its ids."""
    if isinstance(given, str):
        return len(given)
    if isinstance(given, TokenIds):
        return len(given.ids)
    first, second = given
    return len(first) + len(second)
