"""Rates of several ways to do the same work, measured in turn.

What else runs on a machine slows a whole round, so ways are compared within rounds: the median of
ratios says more than the ratio of medians, and that more than single times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")
ROUNDS = 7
ROUND_SECONDS = 0.5
"""Least time of one way in a round, where there is work enough."""
FIRST_SAMPLE = 8
"""Items of the smallest workload."""


@dataclass(frozen=True)
class Rate:
    """How fast one way was."""

    per_second: float
    """Median over the rounds."""
    ratio: float
    """Median over the rounds of its rate over the first way's in the same round."""


def workload(
    items: Sequence[Item],
    way: Callable[[Sequence[Item]], object],
    clock: Callable[[], float] = time.perf_counter,
) -> list[Item]:
    """Items, evenly spread over all, that take a way `ROUND_SECONDS` at least; or all of them."""
    count = FIRST_SAMPLE
    while count < len(items):
        chosen = [items[place * len(items) // count] for place in range(count)]
        way(chosen)  # shapes that are new are slow
        started = clock()
        way(chosen)
        if clock() - started >= ROUND_SECONDS:
            return chosen
        count *= 2
    return list(items)


def in_turn(
    items: Sequence[Item],
    ways: Sequence[Callable[[Sequence[Item]], object]],
    clock: Callable[[], float] = time.perf_counter,
) -> list[Rate]:
    """The rate of each way over a workload, in interleaved rounds.

    Args:
        items: at least one.
        ways: each does the work of all items; the first is what the others are compared to.
        clock: seconds.

    """
    chosen = workload(items, ways[0], clock)
    for way in ways:
        way(chosen)
    seconds: list[list[float]] = [[] for _ in ways]
    for number in range(ROUNDS):
        for turn in range(len(ways)):
            index = (number + turn) % len(ways)
            started = clock()
            ways[index](chosen)
            seconds[index].append(clock() - started)
    return [
        Rate(
            per_second=statistics.median(len(chosen) / each for each in found),
            ratio=statistics.median(
                first / each for first, each in zip(seconds[0], found, strict=True)
            ),
        )
        for found in seconds
    ]
