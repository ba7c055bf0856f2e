"""Scores of a document without each of some parts of it.

Notation: W parts of a document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.engines.contract import Output
from service.inference.explanation.occlusion import Job
from service.inference.ranking.scorer import Scorer


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
