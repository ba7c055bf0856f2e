"""Comparison of two documents' scores, word by word, and their ranks without single words.

Notation: D tokens of a document, W distinct words of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.engines.contract import Floats, TextTask
from service.inference.explanation.occlusion import Occlusion
from service.inference.explanation.spans import split_words, tokens_of
from service.inference.ranking.scorers import Scorer, Tokens
from service.inference.tokenization.text import Offset, Text


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

    A word without a token, such as one that was truncated, is skipped.
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


def occluded_document(scorer: Scorer[Any], number: int, parts: Sequence[Tokens]) -> Occlusion:
    """Return the occlusion of a document, whose parts are of its own tokens."""
    own = scorer.own_tokens(number)

    def tasks(unseen: Tokens) -> list[TextTask]:
        task = scorer.task(number, unseen)
        return [task] if task else []

    return Occlusion(
        [tuple(own[token] for token in part) for part in parts],
        range(len(parts)),
        tasks,
        lambda unseen, outputs: scorer.score(number, outputs[0], unseen),
        scorer.empty_score,
    )


@dataclass
class ComparedDocument:
    """Document of a comparison, with its words and their shares."""

    scorer: Scorer[Any]
    number: int
    text: str
    score: float
    token_shares: Floats | None
    """`[D]`: shares that sum to the score; None if the model's shares are losses."""
    top: int
    """Maximum number of the strongest words."""
    words: list[Word] = field(init=False)
    occlusion: Occlusion = field(init=False)
    """Occlusion of each word; of the strongest words, if shares sum to the score."""

    def __post_init__(self) -> None:
        """Split the document into words, and choose the words to leave out."""
        self.words = left_out = distinct_words(self.text, self.scorer.document(self.number))
        if self.token_shares is not None:
            left_out = [self.words[place] for place in self.strongest]
        parts = [tuple(word.tokens) for word in left_out]
        self.occlusion = occluded_document(self.scorer, self.number, parts)

    @property
    def shares(self) -> NDArray[np.float64]:
        """`[W]`: share of each word in the score; NaN where it is not computed."""
        if self.token_shares is None:
            return self.score - self.occlusion.scores
        return word_shares(self.words, self.token_shares)

    @property
    def rest(self) -> float:
        """Sum of the shares of all other tokens; 0 if shares are losses."""
        if self.token_shares is None:
            return 0.0
        return float(self.token_shares.sum(dtype=np.float64)) - float(self.shares.sum())

    @property
    def strongest(self) -> list[int]:
        """Indices of the words with the largest known shares, the largest first."""
        shares = self.shares
        known = np.flatnonzero(~np.isnan(shares))
        order: list[int] = known[np.argsort(-shares[known], kind="stable")].tolist()
        return order[: self.top]

    @property
    def without(self) -> list[float]:
        """Score of the document without each of these words; NaN where it is not computed."""
        scores = self.occlusion.scores
        known: list[float] = (
            scores[self.strongest] if self.token_shares is None else scores
        ).tolist()
        return known


class WordDifference(NamedTuple):
    """A word of either document, and its shares in both scores."""

    word: str
    shares: tuple[float, float]
    """0 in a document without the word; NaN where it is not computed."""
    difference: float
    """First share minus second share."""
    spans: tuple[Sequence[Offset], Sequence[Offset]]
    """Occurrences in each document."""


def differences(first: ComparedDocument, other: ComparedDocument) -> list[WordDifference]:
    """Return the words of two documents, by falling size of their difference.

    Words whose difference is not computed come last.
    """
    none, rows = (0.0, Word("")), []
    sides = [
        {
            word.text: (float(share), word)
            for word, share in zip(each.words, each.shares, strict=True)
        }
        for each in (first, other)
    ]
    for name in {**sides[0], **sides[1]}:
        (a, one), (b, two) = (side.get(name, none) for side in sides)
        rows.append(WordDifference(name, (a, b), a - b, (one.spans, two.spans)))
    return sorted(rows, key=lambda row: (math.isnan(row.difference), -abs(row.difference)))


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
