"""Words of a text, split by its characters alone, and the tokens of each word.

Words are separated by spaces, without punctuation at their ends; inner punctuation belongs to the
word (didn't, 3.14, open-source). A punctuation mark is a word, and a run of the same mark is one
word (...). An ideograph or a kana is a word, since Chinese and Japanese have no spaces. A combining
mark or a control or format character belongs to the character before it.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.inference.tokenization.tokenized import TokenizedText
from service.inference.tokenization.truncation import Offset

Split = Literal["punctuation", "spaces"]
"""Splitting as above, or at spaces alone for texts that are already split into words."""
IDEOGRAPHS = ("CJK UNIFIED", "CJK COMPATIBILITY", "IDEOGRAPHIC ITERATION", "HIRAGANA", "KATAKANA")
"""Prefixes of the names of characters that are words of their own."""
KNOWN_CHARACTERS = 2**16
"""Maximum number of characters whose class is cached."""
_SPACED = re.compile(r"\S+")
_WORD = re.compile("im*|w(?:[wmp]*w)?m*|[mp]m*")
"""Pattern over classes: an ideograph; letters and digits with inner marks; a punctuation mark."""


class _Classes(dict[int, str]):
    """Code point → class: `w` letters, digits; `i` ideographs; `m` marks; `p` others; ` ` space."""

    def __missing__(self, point: int) -> str:
        character = chr(point)
        category = unicodedata.category(character)[0]
        if character.isspace():
            kind = " "
        elif unicodedata.name(character, "").startswith(IDEOGRAPHS) and category == "L":
            kind = "i"
        else:
            kind = {"L": "w", "N": "w", "M": "m", "C": "m"}.get(category, "p")
        if len(self) < KNOWN_CHARACTERS:
            self[point] = kind
        return kind


_CLASSES = _Classes()


def split_words(text: str, split: Split = "punctuation") -> list[Offset]:
    """Return the start and end of each word in code points."""
    if split == "spaces":
        return [match.span() for match in _SPACED.finditer(text)]
    words: list[Offset] = []
    for match in _WORD.finditer(text.translate(_CLASSES)):
        start, end = match.span()
        if words and words[-1][1] == start and _repeats(text, words[-1], match):
            words[-1] = words[-1][0], end
        else:
            words.append((start, end))
    return words


def _repeats(text: str, before: Offset, match: re.Match[str]) -> bool:
    """Return whether a match is the same punctuation mark as the word before it."""
    start, end = match.span()
    return (
        match[0] == "p"
        and end - start == 1
        and text[before[1] - 1] == text[start] == text[before[0]]
    )


@dataclass(frozen=True)
class AlignedText:
    """W words of a text, and their tokens.

    A token that overlaps several words, such as a piece of two ideographs, belongs to each of them.
    Special tokens, prompt tokens and tokens of spaces belong to no word. A word may lack tokens if
    the text was truncated before it, or if the tokenizer drops its characters.
    """

    text: str
    words: NDArray[np.int32]
    """Start and end of each word in code points, `[W, 2]`."""
    tokens: NDArray[np.intp]
    """Positions of the tokens that belong to words, `[n]`, ascending."""
    worded: NDArray[np.intp]
    """Indices of the words with tokens, ascending."""
    pieces: NDArray[np.intp]
    """Indices into `tokens` of the tokens of each word with tokens, word by word."""
    starts: NDArray[np.intp]
    """Start of each word in `pieces`."""

    @property
    def spread(self) -> int:
        """Maximum number of words that a token belongs to; 1 without tokens."""
        return int(np.bincount(self.pieces).max(initial=1))


def aligned_text(text: str, tokenized: TokenizedText, split: Split) -> AlignedText:
    """Split a text into words, and find their tokens."""
    words = split_words(text, split)
    owned = tokens_of(words, tokenized)
    worded = [word for word, tokens in enumerate(owned) if tokens]
    listed = list(itertools.chain.from_iterable(owned))
    tokens, pieces = np.unique(np.array(listed, np.intp), return_inverse=True)
    sizes = [len(owned[word]) for word in worded]
    starts = np.array([0, *itertools.accumulate(sizes)][: len(sizes)], np.intp)
    places = np.array(words, np.int32).reshape(-1, 2)
    return AlignedText(text, places, tokens, np.array(worded, np.intp), pieces, starts)


def tokens_of(parts: Sequence[Offset], tokenized: TokenizedText) -> list[list[int]]:
    """Return the positions of the tokens in each part of a text, without special and prompt tokens.

    Args:
        parts: start and end of each part in code points, ascending, without overlaps.
        tokenized: tokens of the text.

    """
    owned: list[list[int]] = [[] for _ in parts]
    first = 0
    spans = zip(tokenized.offsets, tokenized.special_tokens_mask, strict=True)
    for token, ((start, end), special) in enumerate(spans):
        if special or start == end:
            continue
        while first < len(parts) and parts[first][1] <= start:
            first += 1
        for part in range(first, len(parts)):
            if parts[part][0] >= end:
                break
            owned[part].append(token)
    return owned
