"""Jobs of a document without its parts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from service.engines.contract import Output
from service.inference.ranking.occluded import OccludedDocument
from tests.service.harness import text


class Scoring:
    """Scorer of a pair: its document has the tokens 2 and 3 of 4, or is all of it."""

    empty_score = -7.0

    def __init__(self, own: range) -> None:
        self.own = own

    def own_tokens(self, number: int) -> range:
        return self.own

    def leaves_nothing(self, number: int, unseen: tuple[int, ...]) -> bool:
        return len(unseen) == 4

    def task(self, number: int, unseen: tuple[int, ...]) -> Any:
        return text(4), unseen

    def score(self, number: int, output: Output, unseen: tuple[int, ...]) -> float:
        return float(sum(unseen))


def test_parts_are_those_of_the_document_and_an_empty_one_is_not_computed() -> None:
    parts = OccludedDocument(Scoring(range(2, 4)), 0, [[0], [0, 1]])  # type: ignore[arg-type]
    jobs: Any = [*parts.jobs()]
    assert [unseen for (_, unseen), _ in jobs] == [(2,), (2, 3)]
    assert all(math.isnan(score) for score in parts.scores)
    jobs[1][1](Output())
    np.testing.assert_array_equal(parts.scores, [math.nan, 5.0])
    whole = OccludedDocument(Scoring(range(4)), 0, [[0, 1, 2, 3]])  # type: ignore[arg-type]
    assert [*whole.jobs()] == []
    assert whole.scores.tolist() == [-7.0]
