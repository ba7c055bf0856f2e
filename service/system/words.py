"""Lists of allowed words, and suggestions, for messages about wrong values."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

CLOSE = 0.7
"""Minimum similarity of a suggested word, by `difflib`'s ratio."""


def must_be_one_of(words: Iterable[str]) -> str:
    """Return the message `must be a, b or c`."""
    *others, last = words
    return f"must be {', '.join(others)} or {last}"


def likely(wrong: str, words: Sequence[str]) -> str:
    """Return `: did you mean a?` if a word is similar enough, else empty; `gpu` is not to `cpu`."""
    (closest,) = difflib.get_close_matches(wrong.lower(), words, 1, CLOSE) or [""]
    return f": did you mean {closest}?" if closest else ""
