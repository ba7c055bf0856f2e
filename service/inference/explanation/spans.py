"""Parts of a text or picture that are occluded as a whole: tokens, words, sentences, or blocks.

Words are separated by spaces, without punctuation at their ends; inner punctuation belongs to the
word (didn't, 3.14, open-source). A punctuation mark is a word, and a run of the same mark is one
word (...). An ideograph or a kana is a word, since Chinese and Japanese have no spaces. A combining
mark or a control or format character belongs to the character before it.

Sentences are those of `service.inference.outputs.chunks`, and also end with their line.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from service.engines.contract import Floats
from service.inference.outputs.chunks import sentence_starts
from service.inference.tokenization.text import Offset, Text

SpanKind = Literal["tokens", "words", "sentences"]
IDEOGRAPHS = ("CJK UNIFIED", "CJK COMPATIBILITY", "IDEOGRAPHIC ITERATION", "HIRAGANA", "KATAKANA")
"""Prefixes of the names of characters that are words of their own."""
_WORD = re.compile("im*|w(?:[wmp]*w)?m*|[mp]m*")
"""Pattern over classes: an ideograph; letters and digits with inner marks; a punctuation mark."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text, and the tokens that overlap it."""

    start: int
    """Offset of its first character, in code points."""
    end: int
    tokens: tuple[int, ...]
    """Indices of its tokens, ascending; at least one."""


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of a picture's patches, and their tokens."""

    rows: tuple[int, int]
    """First row, and the row after the last."""
    columns: tuple[int, int]
    tokens: tuple[int, ...]
    """Indices of its tokens, ascending."""


AnySpan = Span | Block


def blocks_of(picture: Text, edge: int) -> list[Block]:
    """Split a picture into squares of patches, row by row, smaller ones at its right and bottom.

    Special tokens are in no block. `edge` is the number of patches along the edge of a square.
    """
    if picture.picture is None:
        raise ValueError("a text has no patches")
    rows, columns = picture.picture.grid
    first = len(picture.input_ids) - rows * columns
    tokens = np.arange(first, first + rows * columns).reshape(rows, columns)
    blocks = []
    for top, left in itertools.product(range(0, rows, edge), range(0, columns, edge)):
        bottom, right = min(top + edge, rows), min(left + edge, columns)
        own = tokens[top:bottom, left:right].reshape(-1).tolist()
        blocks.append(Block((top, bottom), (left, right), tuple(own)))
    return blocks


def spans_of(kind: SpanKind, text: str, tokenized: Text) -> list[Span]:
    """Split a text, as the caller sent it, into spans.

    Tokens include special tokens and the tokens of a prompt. Words and sentences without a token
    are skipped.
    """
    if kind == "tokens":
        offsets = enumerate(tokenized.offsets)
        return [Span(start, end, (token,)) for token, (start, end) in offsets]
    parts = split_words(text) if kind == "words" else split_sentences(text)
    held = zip(parts, tokens_of(parts, tokenized), strict=True)
    return [Span(start, end, tuple(tokens)) for (start, end), tokens in held if tokens]


def split_sentences(text: str) -> list[Offset]:
    """Return start and end of each sentence in code points, without surrounding white space."""
    sentences: list[Offset] = []
    begin = 0
    for line in text.splitlines(keepends=True):
        for start, end in itertools.pairwise([0, *sentence_starts(line), len(line)]):
            part = line[start:end]
            if part.strip():
                before = begin + start + len(part) - len(part.lstrip())
                sentences.append((before, begin + start + len(part.rstrip())))
        begin += len(line)
    return sentences


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

    Parts are in code points, ascending, without overlaps.
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


def span_sums(spans: Sequence[AnySpan], values: Floats) -> Floats:
    """Return the sum of the values of each span's tokens: `[S]` → `[W]`."""
    return np.array([values[list(span.tokens)].sum() for span in spans], np.float32)
