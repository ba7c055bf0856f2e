"""Rates on a clock that the timed functions move."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest

from service.measuring.timing import ROUND_SECONDS, ROUNDS, in_turn, workload


class Clock:
    """Clock, and functions that advance it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def __call__(self) -> float:
        return self.now

    def way(self, name: str, seconds: Callable[[int], float]) -> Callable[[Sequence[int]], None]:
        """Return a function that takes `seconds(n)` seconds an item at its nth call."""
        calls = 0

        def run(items: Sequence[int]) -> None:
            nonlocal calls
            self.now += len(items) * seconds(calls)
            self.order.append(name)
            calls += 1

        return run


def test_a_workload_takes_long_enough_and_is_spread_over_all() -> None:
    clock = Clock()
    items = list(range(1000))
    chosen = workload(items, clock.way("a", lambda _: 0.01), clock)
    assert len(chosen) == 64  # 32 would take 0.32 seconds
    assert chosen[0] == 0
    assert {later - earlier for earlier, later in itertools.pairwise(chosen)} <= {15, 16}


@pytest.mark.parametrize("count", [1, 8, 20])
def test_little_work_is_all_taken(count: int) -> None:
    clock = Clock()
    items = list(range(count))
    assert workload(items, clock.way("a", lambda _: 0.001), clock) == items


def test_slow_work_is_a_few_items() -> None:
    clock = Clock()
    assert len(workload(list(range(1000)), clock.way("a", lambda _: 10), clock)) == 8


def test_rates_and_ratios() -> None:
    clock = Clock()
    ways = [clock.way("a", lambda _: 0.1), clock.way("b", lambda _: 0.04)]
    first, second = in_turn(list(range(8)), ways, clock)
    assert first.per_second == pytest.approx(10)
    assert first.ratio == 1
    assert second.per_second == pytest.approx(25)
    assert second.ratio == pytest.approx(2.5)


def test_first_calls_which_compile_are_not_counted() -> None:
    clock = Clock()
    compiles = clock.way("a", lambda call: 0.001 if call % 2 else 100)
    assert len(workload(list(range(100)), compiles, clock)) == 100
    clock.order.clear()
    ways = [clock.way(name, lambda _: 1.0) for name in "ab"]
    in_turn([0], ways, clock)
    assert "".join(clock.order[:4]) == "abab"
    assert len(clock.order) == 2 * (1 + ROUNDS)


def test_rounds_are_interleaved_and_nobody_is_always_first() -> None:
    clock = Clock()
    ways = [clock.way(name, lambda _: ROUND_SECONDS) for name in "abc"]
    in_turn([0], ways, clock)
    turns = "".join(clock.order[-3 * ROUNDS :])
    assert turns.startswith("abcbcacab")
    assert all(turns.count(name) == ROUNDS for name in "abc")


def test_a_machine_that_is_slow_for_a_while_changes_no_ratio() -> None:
    """Half of the rounds take ten times as long for both ways, and one round for only one."""
    clock = Clock()

    def slow(call: int) -> float:
        return 10.0 if call > 3 else 1.0

    ways = [
        clock.way("a", lambda call: 0.2 * slow(call)),
        clock.way("b", lambda call: 0.1 * slow(call) * (7 if call == 5 else 1)),
    ]
    assert in_turn([0], ways, clock)[1].ratio == pytest.approx(2)
