"""Comparison of two documents' scores, word by word, and their ranks without single words.

Notation: D tokens of a document, W distinct words of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.engines.contract import Floats
from service.inference.ranking.occluded import OccludedDocument
from service.inference.ranking.scorer import Scorer
from service.inference.ranking.words import Word, distinct_words, word_shares


@dataclass(frozen=True)
class ComparedDocument:
    """Document of a comparison, with its words and their shares."""

    number: int
    score: float
    words: Sequence[Word]
    shares: NDArray[np.float64]
    """`[W]`: share of each word in the score; NaN where it is not computed."""
    rest: float
    """Sum of the shares of all other tokens; 0 if shares are losses."""
    strongest: Sequence[int]
    """Indices of the words with the largest shares, the largest first."""
    without: Sequence[float]
    """Score of the document without each of these words; NaN where it is not computed."""
    wanted: int
    """Number of forward passes without a word."""
    computed: int
    """Number of these that were computed before the deadline."""


@dataclass
class ContrastWork:
    """State of one of two compared documents during the computation."""

    scorer: Scorer
    number: int
    text: str
    score: float
    token_shares: Floats | None
    """`[D]`: shares that sum to the score; None if the model's shares are losses."""
    top: int
    """Number of the strongest words."""
    words: list[Word] = field(init=False)
    occluded: OccludedDocument = field(init=False)
    _strongest: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Split the document into words, and choose the words to leave out."""
        self.words = distinct_words(self.text, self.scorer.document(self.number))
        left_out = self.words
        if self.token_shares is not None:
            self._strongest = self._order(word_shares(self.words, self.token_shares))
            left_out = [self.words[place] for place in self._strongest]
        parts = [word.tokens for word in left_out]
        self.occluded = OccludedDocument(self.scorer, self.number, parts)

    def compared(self) -> ComparedDocument:
        """Return the document with the values computed so far."""
        scores = self.occluded.scores.copy()
        if self.token_shares is None:
            shares, rest = self.score - scores, 0.0
            strongest = self._order(shares)
            without = [float(scores[place]) for place in strongest]
        else:
            shares = word_shares(self.words, self.token_shares)
            rest = float(self.token_shares.sum(dtype=np.float64)) - float(shares.sum())
            strongest, without = self._strongest, scores.tolist()
        computed = int(np.count_nonzero(~np.isnan(scores)))
        return ComparedDocument(
            self.number,
            self.score,
            self.words,
            shares,
            rest,
            strongest,
            without,
            wanted=len(scores),
            computed=computed,
        )

    def _order(self, shares: NDArray[np.float64]) -> list[int]:
        """Return the indices of the `top` words with the largest known shares."""
        known = np.flatnonzero(~np.isnan(shares))
        order: list[int] = known[np.argsort(-shares[known], kind="stable")].tolist()
        return order[: self.top]


@dataclass(frozen=True)
class WordDifference:
    """A word of either document, and its shares in both scores."""

    text: str
    first: Word | None
    other: Word | None
    shares: tuple[float, float]
    """0 in a document without the word; NaN where it is not computed."""

    @property
    def difference(self) -> float:
        """Share in the first score minus share in the other score."""
        return self.shares[0] - self.shares[1]


def differences(first: ComparedDocument, other: ComparedDocument) -> list[WordDifference]:
    """Return the words of two documents, by falling size of their difference.

    Words whose difference is not computed come last.
    """
    sides = [
        {
            word.text: (word, float(share))
            for word, share in zip(side.words, side.shares, strict=True)
        }
        for side in (first, other)
    ]
    none: tuple[Word | None, float] = (None, 0.0)
    rows = []
    for name in {**sides[0], **sides[1]}:
        (one, a), (two, b) = (side.get(name, none) for side in sides)
        rows.append(WordDifference(name, one, two, (a, b)))
    return sorted(rows, key=lambda row: _falling(row.difference))


def completeness_error(first: ComparedDocument, other: ComparedDocument) -> float:
    """Return |sum of all differences − difference of the scores|; NaN if shares are missing."""
    total = sum(
        sign * (float(side.shares.sum()) + side.rest) for sign, side in ((1, first), (-1, other))
    )
    return abs(total - (first.score - other.score))


def rank_with(scores: Sequence[float], number: int, score: float) -> int:
    """Return the rank, from 1, that a document would have with another score.

    Among equal scores, the document with the lower index is first.
    """
    return 1 + sum(
        own > score or (own == score and place < number)
        for place, own in enumerate(scores)
        if place != number
    )


def _falling(value: float) -> float:
    return math.inf if math.isnan(value) else -abs(value)
