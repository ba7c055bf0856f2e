"""The words of a text, found in its characters alone, and the tokens that each has.

A word is what spaces part, without the punctuation at its ends; inside (didn't, 3.14, open-source)
punctuation belongs to it. A punctuation mark is a word, and several equal ones in a row are one
(...). An ideograph or a kana is a word, since Chinese and Japanese have no spaces. A combining mark
or a character without a form belongs to the character before it.
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

from service.inference.tokenization.excerpt import Offset
from service.inference.tokenization.tokenizer import TokenizedText

Split = Literal["punctuation", "spaces"]
"""Words as above; or whatever spaces part, as in texts that are tokenised already."""
IDEOGRAPHS = ("CJK UNIFIED", "CJK COMPATIBILITY", "IDEOGRAPHIC ITERATION", "HIRAGANA", "KATAKANA")
"""How the names of characters begin that are words of their own."""
KNOWN_CHARACTERS = 2**16
"""Characters whose class is remembered."""
_SPACED = re.compile(r"\S+")
_WORD = re.compile("im*|w(?:[wmp]*w)?m*|[mp]m*")
"""Over classes: an ideograph; letters and digits with what is between them; a punctuation mark."""


class _Classes(dict[int, str]):
    """Code point → class: `w` letters and digits, `i` ideographs, `m` marks, `p` others, space."""

    def __missing__(self, point: int) -> str:
        character = chr(point)
        category = unicodedata.category(character)[0]
        if character.isspace():
            found = " "
        elif unicodedata.name(character, "").startswith(IDEOGRAPHS) and category == "L":
            found = "i"
        else:
            found = {"L": "w", "N": "w", "M": "m", "C": "m"}.get(category, "p")
        if len(self) < KNOWN_CHARACTERS:
            self[point] = found
        return found


_CLASSES = _Classes()


def split_words(text: str, split: Split = "punctuation") -> list[Offset]:
    """Code points where each word begins and ends."""
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
    """Whether a match is the same punctuation mark as the word before it."""
    start, end = match.span()
    return (
        match[0] == "p"
        and end - start == 1
        and text[before[1] - 1] == text[start] == text[before[0]]
    )


@dataclass(frozen=True)
class AlignedText:
    """The W words of a text, and the tokens of which they are made.

    A token that shares a character with several words, as a piece of two ideographs does, is of
    each of them; special tokens, those of a prompt and bare spaces are of none. A word may have
    none, behind the cut of a truncated text or where the tokenizer drops its characters.
    """

    text: str
    words: NDArray[np.int32]
    """`[W, 2]`, code points where each begins and ends."""
    tokens: NDArray[np.intp]
    """`[n]`, positions of the tokens that are of a word, ascending."""
    worded: NDArray[np.intp]
    """Indices of words that have tokens, ascending."""
    pieces: NDArray[np.intp]
    """Indices into `tokens` of the tokens of each word that has some, one word after the other."""
    starts: NDArray[np.intp]
    """Where each word's begin among the pieces."""

    @property
    def spread(self) -> int:
        """Most words that a token is of; 1 without a token."""
        return int(np.bincount(self.pieces).max(initial=1))


def aligned_text(text: str, tokenized: TokenizedText, split: Split) -> AlignedText:
    """The words of a text, and their tokens."""
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
    """Return the tokens of each part of a text, none of which is special or of a prompt.

    Args:
        parts: code points where each begins and ends, ascending, none inside another.
        tokenized: the tokens of the text.

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
