"""Parts of a text or picture that are occluded as a whole: tokens, words, sentences, or blocks.

`service.inference.words` defines words, and `service.inference.outputs.chunks` sentences, which
also end with their line.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from service.engines.contract import Floats
from service.inference.outputs.chunks import sentence_starts
from service.inference.tokenization.text import Offset, Text
from service.inference.words import split_words, tokens_of

SpanKind = Literal["tokens", "words", "sentences"]


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


def span_sums(spans: Sequence[AnySpan], values: Floats) -> Floats:
    """Return the sum of the values of each span's tokens: `[S]` → `[W]`."""
    return np.array([values[list(span.tokens)].sum() for span in spans], np.float32)
