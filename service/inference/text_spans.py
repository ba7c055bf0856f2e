"""Token ranges of character spans, whose tokens are pooled to one vector a span (late chunking).

Günther et al. 2024, "Late Chunking", https://arxiv.org/abs/2409.04701: all tokens of a text are
encoded together, and the token vectors of each span are pooled afterwards.

Notation: S tokens of one text, n spans of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.numerics.pooling import PoolingModes, modes_of, pool
from service.engines.contract import Floats
from service.errors import Unprocessable
from service.inference.tokenization.text import Offset, Places, Text, places_of

MOST_SPANS, MOST_SPAN_TOKENS = 2**14, 2**20
"""Maximum spans of a request, and maximum tokens of all its spans together."""
TokenRanges = NDArray[np.int64]
"""First token and token after the last of each span, `[n, 2]`."""


@dataclass(frozen=True, slots=True)
class TextSpans:
    """Spans of a text."""

    places: Places
    """Start and end of each span in code points, `[n, 2]`."""
    ranges: TokenRanges
    """Tokens of each span; at least one."""


@dataclass(frozen=True, slots=True)
class OwnTokens:
    """A text's own tokens, without special tokens and without the tokens of a prompt."""

    first: int
    """Index of the first own token in the text."""
    places: Places
    """Start and end of each own token in code points, without surrounding white space, `[n, 2]`."""

    @classmethod
    def of(cls, text: str, tokenized: Text) -> OwnTokens:
        """Return the own tokens of a text."""
        own = np.flatnonzero(np.frombuffer(bytes(tokenized.special_tokens_mask), np.uint8) == 0)
        if not len(own):
            return cls(0, np.zeros((0, 2), np.int32))
        first, last = int(own[0]), int(own[-1])
        places = tokenized.places[first : last + 1].copy()
        # Offsets of a byte-level token include the space before its word
        for row, (start, end) in enumerate(places.tolist()):
            piece = text[start:end]
            if piece and (piece[0].isspace() or piece[-1].isspace()) and piece.strip():
                places[row, 0] = start + len(piece) - len(piece.lstrip())
                places[row, 1] = start + len(piece.rstrip())
        return cls(first, places)

    def ranges(self, spans: Sequence[Offset]) -> TokenRanges:
        """Return the tokens that overlap each span; an empty range for a span without tokens."""
        wanted = np.array(spans, np.int64).reshape(-1, 2)
        ends = np.maximum.accumulate(self.places[:, 1])
        starts = np.minimum.accumulate(self.places[::-1, 0])[::-1]
        first = np.searchsorted(ends, wanted[:, 0], side="right")
        last = np.searchsorted(starts, wanted[:, 1], side="left")
        return np.stack([first, np.maximum(first, last)], axis=1) + self.first


def spans_of(
    texts: Sequence[str], spans: Sequence[Sequence[Offset]], tokenized: Sequence[Text]
) -> list[TextSpans]:
    """Return the spans of each text with their tokens.

    Args:
        texts: texts as the caller sent them.
        spans: start and end of each span in code points of its text.
        tokenized: tokens of the texts.

    Raises:
        Unprocessable: a span is empty, out of its text, without a token, or reaches into the part
            of the text that was cut off; or the spans have too many tokens together.

    """
    found = [
        _text_spans(index, text, of_text, own)
        for index, (text, of_text, own) in enumerate(zip(texts, spans, tokenized, strict=True))
    ]
    tokens = sum(int((own.ranges[:, 1] - own.ranges[:, 0]).sum()) for own in found)
    if tokens > MOST_SPAN_TOKENS:
        raise Unprocessable(
            f"spans: they have {tokens} tokens together; at most {MOST_SPAN_TOKENS} are taken: "
            "send them in parts"
        )
    return found


def _text_spans(index: int, text: str, spans: Sequence[Offset], tokenized: Text) -> TextSpans:
    """Return one text's spans with their tokens."""
    for place, (start, end) in enumerate(spans):
        name = f"spans[{index}][{place}] is [{start}, {end})"
        if start >= end:
            raise Unprocessable(f"{name}: its start must be below its end")
        if start < 0 or end > len(text):
            raise Unprocessable(
                f"{name}, and inputs[{index}] is [0, {len(text)}): send spans in it"
            )
    own = OwnTokens.of(text, tokenized)
    ranges = own.ranges(spans)
    _check_cut(index, text, spans, tokenized, own)
    for place in np.flatnonzero(ranges[:, 0] == ranges[:, 1])[:1].tolist():
        start, end = spans[place]
        raise Unprocessable(
            f"spans[{index}][{place}] is [{start}, {end}), which has no token: leave it out"
        )
    return TextSpans(places_of(spans), ranges)


def _check_cut(
    index: int, text: str, spans: Sequence[Offset], tokenized: Text, own: OwnTokens
) -> None:
    """Raise if a span reaches into the part of a truncated text that was cut off."""
    if not tokenized.truncated or not len(own.places):
        return
    begin, stop = int(own.places[0, 0]), int(own.places[:, 1].max())
    for place, (start, end) in enumerate(spans):
        if (
            text[start : max(start, min(end, begin))].strip()
            or text[max(start, stop) : end].strip()
        ):
            raise Unprocessable(
                f"spans[{index}][{place}] is [{start}, {end}), and inputs[{index}] was cut to "
                f"[{begin}, {stop}): send spans in it, or a shorter text"
            )


def check_pooling(pooling: PoolingModes) -> None:
    """Raise if a pooling has no meaning for a span.

    Raises:
        Unprocessable: the pooling takes the vector of the text's first token.

    """
    if "cls" in modes_of(pooling):
        raise Unprocessable(
            'spans: the pooling "cls" takes the first token of a text, which is in no span; set '
            '`pooling` to "mean", "max" or "last"'
        )


def span_vectors(state: Floats, ranges: TokenRanges, pooling: PoolingModes) -> list[Floats]:
    """Return the pooled vector of each span, not normalised.

    The tokens of a span are pooled as the tokens of a whole text are: `last` takes the last token
    of the span, and `weightedmean` weights its tokens 1 … n.

    Args:
        state: token vectors `[S, H]` of the whole text.
        ranges: tokens of each span, at least one.
        pooling: as for `pool`.

    """
    return [pool(state[first:last], pooling) for first, last in ranges.tolist()]
