"""Comparison of two documents' scores, word by word, and their ranks without single words.

Notation: D tokens of a document, W distinct words of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.engines.contract import Floats, Output
from service.inference.explanation.occlusion import Job
from service.inference.ranking.scorer import Scorer
from service.inference.tokenization.text import Offset, Text
from service.inference.words import split_words, tokens_of


@dataclass
class Word:
    """Distinct word of a document, without regard to case."""

    text: str
    """Word as `str.casefold` gives it."""
    spans: list[Offset] = field(default_factory=list)
    """Start and end of each occurrence in code points."""
    tokens: list[int] = field(default_factory=list)
    """Indices of the tokens of all occurrences, ascending."""


def distinct_words(text: str, tokenized: Text) -> list[Word]:
    """Return the words of a document in the order of their first occurrence.

    Args:
        text: the document as the caller sent it.
        tokenized: tokens of the document; a word without a token, such as one that was truncated,
            is skipped.

    """
    words: dict[str, Word] = {}
    spans = split_words(text)
    for (start, end), tokens in zip(spans, tokens_of(spans, tokenized), strict=True):
        if tokens:
            name = text[start:end].casefold()
            word = words.setdefault(name, Word(name))
            word.spans.append((start, end))
            last = word.tokens[-1] if word.tokens else -1  # a token may be a piece of two words
            word.tokens += [token for token in tokens if token > last]
    return [*words.values()]


def word_shares(words: Sequence[Word], shares: Floats) -> NDArray[np.float64]:
    """Return the sum of each word's tokens' shares: `[D]` → `[W]`.

    The share of a token of several words, such as a piece of two ideographs, is divided among them.
    """
    owners = Counter(token for word in words for token in word.tokens)
    return np.array(
        [sum(float(shares[token]) / owners[token] for token in word.tokens) for word in words]
    )


@dataclass(frozen=True)
class OccludedDocument:
    """A document whose parts are left out one at a time, as where `attention_mask` is 0."""

    scorer: Scorer
    number: int
    """Index of the document."""
    parts: Sequence[Sequence[int]]
    """Indices of each part's tokens among the document's own tokens."""
    scores: NDArray[np.float64] = field(init=False)
    """`[W]`: score without each part; NaN where it is not computed."""

    def __post_init__(self) -> None:
        """Fill `scores` with NaN."""
        object.__setattr__(self, "scores", np.full(len(self.parts), np.nan))

    def jobs(self) -> Iterator[Job]:
        """Yield a forward pass for each part, and the callable that stores its score.

        A document of which nothing would be left needs no forward pass.
        """
        scorer, number = self.scorer, self.number
        own = scorer.own_tokens(number)
        for place, part in enumerate(self.parts):
            unseen = tuple(own[token] for token in part)
            if scorer.leaves_nothing(number, unseen):
                self.scores[place] = scorer.empty_score
            else:
                yield scorer.task(number, unseen), _Placement(self, place, unseen)


@dataclass(frozen=True, slots=True)
class _Placement:
    """Callable that stores the score of a document without a part."""

    occluded: OccludedDocument
    place: int
    unseen: tuple[int, ...]

    def __call__(self, output: Output) -> None:
        """Store the score; called in the thread that computed the output."""
        scorer, number = self.occluded.scorer, self.occluded.number
        self.occluded.scores[self.place] = scorer.score(number, output, self.unseen)


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
