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
    """How many characters the inputs have together; an id counts as one."""
    return sum(map(_size, inputs))


def _size(given: Input) -> int:
    match given:
        case str(text):
            return len(text)
        case TokenIds(ids):
            return len(ids)
        case first, second:
            return len(first) + len(second)
