"""Differences of words, ranks, and completeness, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from service.inference.ranking.contrast import (
    ComparedDocument,
    completeness_error,
    differences,
    rank_with,
)
from service.inference.ranking.words import Word


def compared(score: float, rest: float, **shares: float) -> ComparedDocument:
    words = [Word(name) for name in shares]
    values = np.array([*shares.values()])
    return ComparedDocument(0, score, words, values, rest, [], [], wanted=0, computed=0)


def test_differences_by_falling_size() -> None:
    first = compared(1.0, 0.25, a=0.5, b=0.25, c=math.nan)
    other = compared(0.5, 0.0, b=0.375, d=-0.125)
    rows = differences(first, other)
    assert [row.text for row in rows] == ["a", "b", "d", "c"]
    assert [row.shares for row in rows[:3]] == [(0.5, 0.0), (0.25, 0.375), (0.0, -0.125)]
    assert [row.difference for row in rows[:3]] == [0.5, -0.125, 0.125]
    assert rows[2].first is None
    assert rows[1].other is other.words[0]


def test_the_error_of_the_sum() -> None:
    first, other = compared(1.0, 0.25, a=0.5), compared(0.5, 0.0, b=0.375)
    assert completeness_error(first, other) == pytest.approx(abs(0.75 - 0.375 - 0.5))
    assert math.isnan(completeness_error(first, compared(0.5, 0.0, b=math.nan)))


def test_the_rank_with_another_score() -> None:
    scores = [0.9, 0.5, 0.5, 0.1]
    assert [rank_with(scores, n, score) for n, score in enumerate(scores)] == [1, 2, 3, 4]
    assert rank_with(scores, 0, 0.5) == 1
    assert rank_with(scores, 0, 0.3) == 3
    assert rank_with(scores, 3, 0.5) == 4
    assert rank_with(scores, 3, 1.0) == 1
