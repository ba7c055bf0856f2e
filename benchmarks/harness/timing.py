"""Time, by the clock that fits: the device's own for what runs on it, else the wall's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

Call = Callable[[], object]
Clock = Callable[[], float]
WARM_UP, REPEATS = 3, 10


def device_seconds(call: Call, *, cuda: bool) -> float:
    """The median time of a call in torch, from one event of the device to the next."""
    for _ in range(WARM_UP):
        call()
    found = []
    for _ in range(REPEATS):
        if cuda:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end) / 1000)
        else:
            found.append(wall_seconds(call))
    return statistics.median(found)


def wall_seconds(call: Call) -> float:
    return seconds_of(call, time.perf_counter)


def seconds_of(call: Call, clock: Clock) -> float:
    """What a clock says of a call."""
    started = clock()
    call()
    return clock() - started


def in_turn(
    ways: Mapping[str, Call],
    rounds: int,
    warm_up: int = 1,
    clock: Clock = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each way in each round, one way after another, once so many did not count.

    `time.process_time` counts this process's own processor time, on all its threads.
    """
    for _ in range(warm_up):
        for call in ways.values():
            call()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            found[name].append(seconds_of(call, clock))
    return found


def median_ratio(above: list[float], below: list[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))
