"""Spans of a text that are occluded as a whole: its tokens, words or sentences.

`service.inference.words` defines words. A sentence ends after `.`, `!`, `?` or `…` and the closing
quotes and brackets that follow, if white space comes next; after `。`, `！`, `？` or `｡`, also
without it; and at the end of a line. `.` and `…` before a lower-case letter do not end a sentence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from service.inference.tokenization.tokenized import TokenizedText
from service.inference.tokenization.truncation import Offset
from service.inference.words import split_words, tokens_of

SpanKind = Literal["tokens", "words", "sentences"]
_SENTENCE_END = re.compile(r"""[.!?…]+["'”’»)\]]*(?=\s)|[。！？｡]+[」』”’）]*|[\n\r\u2028\u2029]""")
_NEXT_CHARACTER = re.compile(r"\S")


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


def blocks_of(picture: TokenizedText, edge: int) -> list[Block]:
    """Split a picture into squares of patches, row by row, smaller ones at its right and bottom.

    Special tokens are in no block.

    Args:
        picture: the tokens of the picture.
        edge: number of patches along the edge of a square.

    """
    if picture.picture is None:
        raise ValueError("a text has no patches")
    rows, columns = picture.picture.grid
    first = len(picture.input_ids) - rows * columns
    blocks = []
    for top in range(0, rows, edge):
        bottom = min(top + edge, rows)
        for left in range(0, columns, edge):
            right = min(left + edge, columns)
            tokens = (
                first + row * columns + column
                for row in range(top, bottom)
                for column in range(left, right)
            )
            blocks.append(Block((top, bottom), (left, right), tuple(tokens)))
    return blocks


def spans_of(kind: SpanKind, text: str, tokenized: TokenizedText) -> list[Span]:
    """Split a text into spans.

    Args:
        kind: `tokens` includes special tokens and the tokens of a prompt.
        text: the text as the caller sent it.
        tokenized: the tokens of the text; words and sentences without a token are skipped.

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
    start = 0
    for match in _SENTENCE_END.finditer(text):
        following = _NEXT_CHARACTER.search(text, match.end())
        if match[0][0] in ".…" and following and following[0].islower():
            continue
        start = _add(sentences, text, start, match.end())
    _add(sentences, text, start, len(text))
    return sentences


def _add(sentences: list[Offset], text: str, start: int, end: int) -> int:
    """Append a sentence without surrounding white space, unless it is empty; return `end`."""
    part = text[start:end]
    if part.strip():
        begins = start + len(part) - len(part.lstrip())
        sentences.append((begins, start + len(part.rstrip())))
    return end
