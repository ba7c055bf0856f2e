"""Detection of a standing queue, as opposed to a burst (CoDel)."""

from __future__ import annotations

import math

from service.scheduler.congestion import INTERVAL_SECONDS, Congestion

STEP = INTERVAL_SECONDS / 4


def after(congestion: Congestion, waits: list[float], since: float = 0.0) -> float:
    """Return the maximum allowed wait for a timeout of 60 s, after a request in each step."""
    for step, wait in enumerate(waits):
        congestion.observe(wait, since + step * STEP)
    return congestion.most_seconds(60.0)


def test_a_burst_may_wait_as_long_as_it_likes() -> None:
    assert after(Congestion(2.0), [0.1, 5.0, 30.0, 50.0]) == 60.0


def test_a_queue_in_which_all_wait_too_long_stands() -> None:
    assert after(Congestion(2.0), [3.0] * 9) == 4.0


def test_one_short_wait_in_an_interval_is_enough() -> None:
    assert after(Congestion(2.0), [30.0, 30.0, 1.9, 30.0] * 5) == 60.0


def test_it_stands_until_a_wait_is_short_again() -> None:
    congestion = Congestion(2.0)
    assert after(congestion, [3.0] * 9) == 4.0
    assert after(congestion, [3.9, 2.1, 2.5] * 5, since=9 * STEP) == 4.0
    assert after(congestion, [2.0], since=24 * STEP) == 60.0


def test_less_patience_than_the_target_stays() -> None:
    congestion = Congestion(2.0)
    after(congestion, [3.0] * 9)
    assert congestion.most_seconds(0.5) == 0.5


def test_after_a_pause_nothing_stands() -> None:
    congestion = Congestion(2.0)
    after(congestion, [3.0] * 9)
    assert after(congestion, [0.0], since=1000.0) == 60.0


def test_without_a_target_nothing_stands() -> None:
    assert after(Congestion(), [1e9] * 20) == 60.0
    assert Congestion().most_seconds(math.inf) == math.inf
