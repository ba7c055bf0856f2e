"""Cutting of a text into chunks of its tokens, at sentences, paragraphs or words.

A chunk ends at the last boundary that leaves it within its size: the end of a paragraph, else of a
sentence, else of a word, else of a token. Kinds of boundaries above the requested kind are unused.
Sentences are those of sentencex (Wikimedia, MIT): it knows abbreviations, quotations, lists, and
the punctuation of some 250 languages; abbreviations are the English ones.

Notation: n own tokens of a text, without special tokens.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sentencex import get_sentence_boundaries

from service.errors import Unprocessable
from service.inference.outputs.spans import MOST_SPANS, OwnTokens
from service.inference.tokenization.text import Text, TextSpans

ChunkKind = Literal["tokens", "sentences", "paragraphs"]
Boundaries = Sequence[int]
"""Indices of the own tokens before which a chunk may end, ascending; the last one is n."""
PIECE_CHARACTERS = 2**12
"""Number of characters that are split at a time. The library's time grows with the square of a
text beyond ASCII: 200,000 Chinese characters at once take 14 s."""
_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*|\r\n?[^\S\r\n]*\r\n?\s*|\u2029\s*")


@dataclass(frozen=True, slots=True)
class ChunkOptions:
    """Options of the chunks of a text."""

    by: ChunkKind = "tokens"
    size: int = 256
    """Maximum number of own tokens of a chunk."""
    overlap: int = 32
    """Maximum number of tokens that a chunk repeats of the chunk before it; at most size / 2."""


def chunks_of(
    texts: Sequence[str],
    tokenized: Sequence[Text],
    options: ChunkOptions,
    most: int = MOST_SPANS,
) -> list[TextSpans]:
    """Return the chunks of each text, at most `most` together; none without own tokens."""
    _check(sum(-(-own.special_tokens_mask.count(0) // options.size) for own in tokenized), most)
    chunks, count = list[TextSpans](), 0
    for text, own in zip(texts, tokenized, strict=True):
        chunks.append(_chunks(text, own, options, most + 1 - count))
        _check(count := count + len(chunks[-1].ranges), most)
    return chunks


def check_alone(texts: Sequence[Text], chunks: Sequence[TextSpans], limit: int) -> None:
    """Raise unless there are chunks that all fit the model as texts of their own."""
    if not any(len(own.ranges) for own in chunks):
        raise Unprocessable("chunk: no input has a token: send texts")
    for index, (text, own) in enumerate(zip(texts, chunks, strict=True)):
        around = sum(text.special_tokens_mask)
        longest = max((own.ranges[:, 1] - own.ranges[:, 0]).tolist(), default=0)
        if longest + around > limit:
            raise Unprocessable(
                f"chunk: inputs[{index}] has a chunk of {longest} tokens, which with {around} "
                f"special and prompt tokens exceed the model's {limit}: set `size` to at most "
                f"{limit - around}, or `late` to true"
            )


def _check(count: int, most: int) -> None:
    """Raise if a lower bound of the number of chunks is too large."""
    if count > most:
        alone = " with `late` false" if most < MOST_SPANS else ""
        raise Unprocessable(
            f"chunk: the inputs give at least {count} chunks; at most {most} are taken{alone}: "
            "set a larger `size`, or send the inputs in parts"
        )


def _chunks(text: str, tokenized: Text, options: ChunkOptions, most: int) -> TextSpans:
    """Return the first chunks of one text, `most` or all."""
    own = OwnTokens.of(text, tokenized)
    if not len(own.places):
        return TextSpans(own.places, own.places.astype(np.int64))
    kinds = _boundaries(text, own, options.by)
    ranges = np.array([*itertools.islice(_cut(kinds, options), most)], np.int64)
    starts, ends = own.places[ranges[:, 0], 0], own.places[ranges[:, 1] - 1, 1]
    return TextSpans(np.stack([starts, ends], axis=1), ranges + own.first)


def _boundaries(text: str, own: OwnTokens, by: ChunkKind) -> list[Boundaries]:
    """Return the boundaries of each kind, from the requested kind down to single tokens."""
    starts, ends = own.places.T
    count = len(starts)
    kinds: list[Sequence[int]] = [(1 + np.flatnonzero(starts[1:] > ends[:-1])).tolist()]
    if by != "tokens":
        kinds.insert(0, _tokens_from(sentence_starts(text), own))
    if by == "paragraphs":
        kinds.insert(0, _tokens_from(paragraph_starts(text), own))
    return [*([*kind, count] for kind in kinds), range(1, count + 1)]


def paragraph_starts(text: str) -> list[int]:
    """Return the start of each paragraph after the first; blank lines separate paragraphs."""
    return [match.end() for match in _PARAGRAPH_END.finditer(text)]


def sentence_starts(text: str) -> list[int]:
    """Return the start of each sentence after the first, in code points, ascending.

    A sentence with more than `PIECE_CHARACTERS` characters may count as several.
    """
    starts, first = list[int](), 0
    while first < len(text):
        piece = text[first : first + PIECE_CHARACTERS]
        found = [part["start_index"] for part in get_sentence_boundaries("en", piece)][1:]
        if first + len(piece) == len(text):
            starts += [first + start for start in found]
            break
        # The last sentence of a piece may go on after it
        inner = found or [len(piece)]
        starts += [first + start for start in inner]
        first += inner[-1]
    return starts


def _tokens_from(characters: Sequence[int], own: OwnTokens) -> list[int]:
    """Return the first token at or after each character, for tokens 1 … n − 1."""
    tokens = np.unique(np.searchsorted(np.maximum.accumulate(own.places[:, 0]), characters))
    inner: list[int] = tokens[(tokens > 0) & (tokens < len(own.places))].tolist()
    return inner


def _cut(kinds: Sequence[Boundaries], options: ChunkOptions) -> Iterator[tuple[int, int]]:
    """Yield first token and token after the last of each chunk."""
    start = end = 0
    while end < len(kinds[-1]):
        if end:
            start = _start(kinds, options, max(start + 1, end - options.overlap), end)
        _, last = _end(kinds, start, end, options.size)
        yield start, last
        end = last


def _start(kinds: Sequence[Boundaries], options: ChunkOptions, earliest: int, end: int) -> int:
    """Return the start of the next chunk, which is `end` without an overlap.

    Chunks of tokens repeat words, and others whole sentences: as many as leave room for the next
    whole part, if it fits into a chunk at all.
    """
    if options.by == "tokens":
        firsts = (kind[bisect.bisect_left(kind, earliest)] for kind in kinds)
        return next((first for first in firsts if first < end), end)
    sentences = kinds[-3]
    best, _ = _end(kinds, end, end, options.size)
    between = bisect.bisect_left(sentences, earliest), bisect.bisect_left(sentences, end)
    for start in sentences[slice(*between)]:
        if _end(kinds, start, end, options.size)[0] <= best:
            return start
    return end


def _end(kinds: Sequence[Boundaries], start: int, end: int, size: int) -> tuple[int, int]:
    """Return the first kind with a boundary after `end` within the size, and the last of these."""
    for number, kind in enumerate(kinds):
        place = bisect.bisect_right(kind, start + size) - 1
        if place >= 0 and kind[place] > end:
            return number, kind[place]
    raise AssertionError("a chunk has room for one more token than its overlap")
