"""Words of a text, split by its characters alone, and the tokens of each word.

Words are separated by spaces, without punctuation at their ends; inner punctuation belongs to the
word (didn't, 3.14, open-source). A punctuation mark is a word, and a run of the same mark is one
word (...). An ideograph or a kana is a word, since Chinese and Japanese have no spaces. A combining
mark or a control or format character belongs to the character before it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from service.inference.tokenization.text import Offset, Text

IDEOGRAPHS = ("CJK UNIFIED", "CJK COMPATIBILITY", "IDEOGRAPHIC ITERATION", "HIRAGANA", "KATAKANA")
"""Prefixes of the names of characters that are words of their own."""
_WORD = re.compile("im*|w(?:[wmp]*w)?m*|[mp]m*")
"""Pattern over classes: an ideograph; letters and digits with inner marks; a punctuation mark."""


@lru_cache(2**16)
def _class(character: str) -> str:
    """Return `w` for a letter or digit, `i` an ideograph, `m` a mark, `p` others, ` ` a space."""
    category = unicodedata.category(character)[0]
    if character.isspace():
        return " "
    if category == "L" and unicodedata.name(character, "").startswith(IDEOGRAPHS):
        return "i"
    return {"L": "w", "N": "w", "M": "m", "C": "m"}.get(category, "p")


def split_words(text: str) -> list[Offset]:
    """Return the start and end of each word in code points."""
    words: list[Offset] = []
    for match in _WORD.finditer("".join(map(_class, text))):
        start, end = match.span()
        if words and match[0] == "p" and words[-1][1] == start:
            first = words[-1][0]
            if text[first] == text[start - 1] == text[start]:  # a run of the same mark
                words[-1] = first, end
                continue
        words.append((start, end))
    return words


def tokens_of(parts: Sequence[Offset], tokenized: Text) -> list[list[int]]:
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
