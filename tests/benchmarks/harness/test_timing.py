"""Ways run in turn, and ratios are taken within a round."""

from __future__ import annotations

from benchmarks.harness.timing import in_turn, median_ratio


def test_ways_take_turns():
    calls: list[str] = []
    ways = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    seconds = in_turn(ways, 2)
    assert calls == ["a", "b"] * 3
    assert {name: len(found) for name, found in seconds.items()} == {"a": 2, "b": 2}


def test_the_ratio_is_the_median_of_the_rounds():
    assert median_ratio([1.0, 8.0, 9.0], [1.0, 4.0, 3.0]) == 2
