"""Pairs of the trained example: numbers and dates, and the same spelled out."""

from __future__ import annotations

import itertools

import pytest

from examples.spelled_dates.sentences import Pair, cardinal, ordinal, pairs


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "zero"), (9, "nine"), (13, "thirteen"), (20, "twenty"), (84, "eighty four")],
)
def test_numbers_are_spelled(number, words):
    assert " ".join(cardinal(number)) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(1, "first"), (4, "fourth"), (12, "twelfth"), (20, "twentieth"), (23, "twenty third")],
)
def test_days_are_spelled(number, words):
    assert " ".join(ordinal(number)) == words


def test_a_date_is_spelled_day_first():
    pair = Pair(["paid"])
    pair.add_number(17)
    pair.source.append("on")
    pair.add_date(1984, 3, 23)
    assert " ".join(pair.source) == "paid 17 on 1984 03 23"
    assert " ".join(pair.target) == "seventeen twenty third march nineteen eighty four"


def test_a_seed_gives_the_same_pairs():
    some, again = (list(itertools.islice(pairs(7), 50)) for _ in range(2))
    assert some == again
