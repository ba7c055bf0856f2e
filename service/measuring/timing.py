"""Rates of several ways to do the same work, measured in interleaved rounds.

Other load on the machine slows a whole round, so ways are compared within each round: the median of
ratios is more robust than the ratio of medians.
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
"""Minimum time of a way in a round, if there is enough work."""
FIRST_SAMPLE = 8
"""Number of items in the smallest workload."""


@dataclass(frozen=True)
class Rate:
    """Rate of a way."""

    per_second: float
    """Items per second, median over the rounds."""
    ratio: float
    """Rate relative to the first way in the same round, median over the rounds."""


def workload(
    items: Sequence[Item],
    way: Callable[[Sequence[Item]], object],
    clock: Callable[[], float] = time.perf_counter,
) -> list[Item]:
    """Return evenly spaced items that take a way at least `ROUND_SECONDS`, or all items."""
    count = FIRST_SAMPLE
    while count < len(items):
        chosen = [items[place * len(items) // count] for place in range(count)]
        way(chosen)  # the first run of new shapes is slow
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
    """Measure the rate of each way over a workload, in interleaved rounds.

    Args:
        items: work items, at least one.
        ways: functions that process all items; the first is the baseline.
        clock: function that returns seconds.

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
            per_second=statistics.median(len(chosen) / elapsed for elapsed in times),
            ratio=statistics.median(
                first / elapsed for first, elapsed in zip(seconds[0], times, strict=True)
            ),
        )
        for times in seconds
    ]
