"""State of a pair of texts during its explanation, and the explanation itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from service.engines.contract import Floats
from service.inference.attention.stream import CHUNK_TOKENS
from service.inference.explanation.cost import Side
from service.inference.explanation.head_occlusion import HeadOcclusion
from service.inference.explanation.occlusion import Occlusion
from service.inference.explanation.options import ExplainOptions
from service.inference.explanation.pairs import PairExplanation
from service.inference.explanation.spans import AnySpan
from service.inference.tokenization.tokenized import TokenizedText


@dataclass
class PairWork:
    """State of a pair of texts during its explanation."""

    options: ExplainOptions
    texts: tuple[TokenizedText, TokenizedText]
    spans: tuple[Sequence[AnySpan], Sequence[AnySpan]]
    similarity: float = math.nan
    pairs: Floats | None = None
    decomposition: Floats | None = None
    occlusions: tuple[Occlusion, ...] = ()
    heads: HeadOcclusion | None = None

    @property
    def sides(self) -> list[Side]:
        """Sizes of both texts."""
        top = self.options.top
        return [
            Side(
                len(text.input_ids),
                len(spans),
                min(len(spans), top or len(spans)),
                text.picture is not None,
            )
            for text, spans in zip(self.texts, self.spans, strict=True)
        ]

    def explanation(self) -> PairExplanation:
        """Return the explanation with the values computed so far.

        Losses are copies, because a running batch may still write into the arrays.
        """
        similarity, decomposition, heads = self.similarity, self.decomposition, None
        wanted: dict[str, int] = {}
        losses: tuple[Floats, Floats] | None = None
        if self.options.occlusion:
            first, second = (
                (similarity - occlusion.without).astype(np.float32) for occlusion in self.occlusions
            )
            losses = first, second
            wanted["occlusion"] = sum(len(occlusion.order) for occlusion in self.occlusions)
        if self.options.decomposition:
            wanted["decomposition"] = 1
            if decomposition is None:
                lengths = [len(text.input_ids) for text in self.texts]
                decomposition = np.full(lengths, np.nan, np.float32)
        if self.heads:
            heads = (similarity - self.heads.similarities).astype(np.float32)
            wanted["heads"] = heads.size
        return PairExplanation(
            similarity=similarity,
            pairs=self.pairs,
            decomposition=decomposition,
            occlusion=losses,
            spans=self.spans,
            span_kind=self.options.spans,
            heads=heads,
            wanted=wanted,
        )


def chunks(works: Sequence[PairWork]) -> Iterator[Sequence[PairWork]]:
    """Split pairs into runs of at most `CHUNK_TOKENS` tokens; a longer pair is a run alone."""
    start = tokens = 0
    for number, work in enumerate(works):
        own = sum(len(text.input_ids) for text in work.texts)
        if number > start and tokens + own > CHUNK_TOKENS:
            yield works[start:number]
            start, tokens = number, 0
        tokens += own
    yield works[start:]
