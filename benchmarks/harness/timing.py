"""Timing of calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

Call = Callable[[], object]
Clock = Callable[[], float]


def wall_seconds(call: Call) -> float:
    return seconds_of(call, time.perf_counter)


def seconds_of(call: Call, clock: Clock) -> float:
    """Return the seconds of a call by a clock."""
    started = clock()
    call()
    return clock() - started


def in_turn(
    ways: Mapping[str, Call],
    rounds: int,
    warm_up: int = 1,
    clock: Clock = time.perf_counter,
) -> dict[str, list[float]]:
    """Run the ways in turn, and return each way's seconds by round after the warm-up rounds.

    `time.process_time` counts this process's own processor time, on all its threads.
    """
    for _ in range(warm_up):
        for call in ways.values():
            call()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            seconds[name].append(seconds_of(call, clock))
    return seconds


def median_ratio(above: list[float], below: list[float]) -> float:
    """Return the median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))
