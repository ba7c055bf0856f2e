"""`spans`: a vector of each span or chunk of a text, pooled over its tokens (late chunking).

Günther et al. 2024, "Late Chunking", https://arxiv.org/abs/2409.04701: all tokens of a text are
encoded together, and the token vectors of each span are pooled afterwards.

Notation: S tokens of one text, n spans of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.artifact.manifest import Manifest
from model.artifact.vectors import TextVectors
from model.numerics.pooling import PoolingModes, modes_of, pool
from service.engines.contract import Floats
from service.engines.contract import Output as Computed
from service.errors import Unprocessable
from service.inference.encoding import EncodeOptions
from service.inference.outputs.field import VECTOR, Field, TextArrays
from service.inference.outputs.output import Output
from service.inference.tokenization.text import (
    Offset,
    Places,
    Text,
    TextSpans,
    TokenRanges,
    places_of,
)
from service.scheduler.outputs import requested

MOST_SPANS, MOST_SPAN_TOKENS = 2**14, 2**20
"""Maximum spans of a request, and maximum tokens of all its spans together."""


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
    """Return the spans of each text with their tokens, if these are not too many together."""
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
    """Return one text's spans with their tokens.

    Raise `Unprocessable` for a span that is empty, out of its text, without a token, or that
    reaches into the part of the text that was cut off.
    """
    names = [f"spans[{index}][{n}] is [{start}, {end})" for n, (start, end) in enumerate(spans)]
    for name, (start, end) in zip(names, spans, strict=True):
        if start >= end:
            raise Unprocessable(f"{name}: its start must be below its end")
        if start < 0 or end > len(text):
            raise Unprocessable(
                f"{name}, and inputs[{index}] is [0, {len(text)}): send spans in it"
            )
    own, begin, stop = OwnTokens.of(text, tokenized), 0, len(text)
    if tokenized.truncated and len(own.places):
        begin, stop = int(own.places[0, 0]), int(own.places[:, 1].max())
    ranges = own.ranges(spans)
    for name, (start, end), (first, last) in zip(names, spans, ranges.tolist(), strict=True):
        cut = text[start : max(start, min(end, begin))], text[max(start, stop) : end]
        if cut[0].strip() or cut[1].strip():
            raise Unprocessable(
                f"{name}, and inputs[{index}] was cut to [{begin}, {stop}): send spans in it, or a "
                "shorter text"
            )
        if first == last:
            raise Unprocessable(f"{name}, which has no token: leave it out")
    return TextSpans(places_of(spans), ranges)


def span_arrays(texts: Sequence[Text], vectors: Floats) -> list[TextArrays]:
    """Return the arrays of each text from the vectors of all spans, text by text, `[…, n, D]`."""
    spans = [requested(text.spans) for text in texts]
    parts = np.split(vectors, np.cumsum([len(own.ranges) for own in spans])[:-1], axis=-2)
    return [
        {"spans": own.places, "span_vectors": part} for own, part in zip(spans, parts, strict=True)
    ]


def check_pooling(pooling: PoolingModes) -> None:
    """Raise if a pooling has no meaning for a span."""
    if "cls" in modes_of(pooling):
        raise Unprocessable(
            'spans: the pooling "cls" takes the first token of a text, which is in no span; set '
            '`pooling` to "mean", "max" or "last"'
        )


class SpansOutput(Output):
    """Vectors `[n, D]` of `Text.spans`: all tokens of a text are encoded together.

    The tokens of a span are pooled as the tokens of a whole text are: `last` takes the last token
    of the span, and `weightedmean` weights its tokens 1 … n.
    """

    name = "spans"
    implied = True
    fields = (
        Field(
            "spans",
            "int32",
            ("n", "2"),
            "Start and end of each span, in code points.",
            ragged=True,
            fact=True,
        ),
        Field("span_cu_seqlens", "int32", bounds_of="spans"),
        Field(
            "span_vectors",
            VECTOR,
            ("n", "D"),
            "`[n][D]`, or `[layers][n][D]`.",
            ragged=True,
            layered=True,
            column="embedding",
        ),
    )
    needs_states = True

    def __init__(self, options: EncodeOptions, manifest: Manifest, vectors: TextVectors) -> None:
        """Choose the pooling."""
        super().__init__(options, manifest, vectors)
        self.use = options.vectors_use(manifest)
        self._mode = options.pooling or vectors.pooling

    def reduce(self, text: Text, computed: Computed) -> TextArrays:
        """Return the places of the spans, and their raw vectors."""
        spans = requested(text.spans)
        size = self.vectors.hidden_size * len(modes_of(self._mode))
        rows = [
            [pool(state[first:last], self._mode) for first, last in spans.ranges.tolist()]
            for state in computed.hidden
        ]
        vectors = [np.array(own, np.float32).reshape(len(own), size) for own in rows]
        return {"spans": spans.places, "span_vectors": self.of_states(vectors)}

    def entries(self, texts: Sequence[Text]) -> int:
        """Return the number of spans."""
        return sum([len(text.spans.ranges) for text in texts if text.spans])
