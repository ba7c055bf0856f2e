"""Inputs of the tokenizer: texts, pairs of texts, and token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids of a text, special tokens included."""

    ids: tuple[int, ...]


Text = str | tuple[str, str]
Input = Text | TokenIds


def characters(inputs: Sequence[Input]) -> int:
    """Return the number of characters of all inputs; an id counts as a character."""
    return sum(map(size_of, inputs))


def size_of(given: Input) -> int:
    """Return the number of characters of an input, or of its ids."""
    if isinstance(given, str):
        return len(given)
    if isinstance(given, TokenIds):
        return len(given.ids)
    first, second = given
    return len(first) + len(second)
