"""Figures: cells, goals, and JSON without infinite numbers."""

from __future__ import annotations

import pytest

from benchmarks.harness.figures import Figure, Goal, not_measured, number


def test_a_figure_says_whether_its_goal_is_reached():
    least, most = Goal("≥", 0.45), Goal("≤", 0)
    assert Figure("x", 0.45, goal=least).met is True
    assert Figure("x", 0.449, goal=least).met is False
    assert Figure("x", 0.0, goal=most).met is True
    assert Figure("x", 1.0, "MiB", most).cells == ("x", "1 MiB", "≤ 0 MISSED", "")
    assert Figure("x", None, goal=least).met is None
    assert Figure("x", "right").met is None
    assert not_measured("x", "why").cells == ("x", "not measured", "", "why")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.45678, "0.457"), (12.345, "12.3"), (1234.5, "1,234"), (0.0, "0"), (2e-5, "2.0e-05")],
)
def test_numbers_are_short(value: float, text: str):
    assert number(value) == text
