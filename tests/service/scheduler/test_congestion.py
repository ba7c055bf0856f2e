"""Standing queues, as opposed to bursts (CoDel), and predicted waiting times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from service.scheduler.lanes import INTERVAL_SECONDS, LARGEST_RATIO, Congestion, Margin, Pace

STEP = INTERVAL_SECONDS / 4
LONG = 60.0
"""Patience of each request, in seconds."""


@pytest.mark.parametrize(
    ("waits", "allowed"),
    [
        pytest.param([0.1, 5.0, 30.0, 50.0], LONG, id="a burst"),
        pytest.param([3.0] * 9, 4.0, id="all wait too long"),
        pytest.param([30.0, 30.0, 1.9, 30.0] * 5, LONG, id="one of each interval does not"),
        pytest.param([3.0] * 9 + [3.9, 2.1, 2.5] * 5, 4.0, id="it still stands"),
        pytest.param([3.0] * 9 + [2.0], LONG, id="until a wait is short again"),
    ],
)
def test_a_queue_stands_if_all_requests_of_an_interval_wait_too_long(
    waits: list[float], allowed: float
) -> None:
    congestion, endless = Congestion(2.0), Congestion()
    for step, wait in enumerate(waits):
        most = congestion.most_seconds(wait, LONG, step * STEP)
        assert endless.most_seconds(wait, LONG, step * STEP) == LONG
    assert most == allowed
    assert congestion.most_seconds(3.0, 0.5, len(waits) * STEP) == 0.5, "less than the target"
    assert congestion.most_seconds(0.0, LONG, 1000.0) == LONG, "after a pause nothing stands"


SIZES = st.lists(st.tuples(st.integers(1, 512), st.floats(1e-6, 10)), min_size=1, max_size=60)


def pace_after(*batches: tuple[int, float]) -> Pace:
    pace = Pace(512)
    for tokens, seconds in batches:
        pace.account(tokens, seconds)
    return pace


@pytest.mark.parametrize(("start", "each"), [(0.08, 0.0), (0.0, 1e-4), (0.002, 1.3e-4)])
def test_it_finds_what_a_batch_and_what_a_token_costs(start: float, each: float) -> None:
    sizes = np.random.default_rng(0).integers(1, 512, 40).tolist()
    assert Pace(512).predict(10**6) == 0.0, "before the first batch nothing is known"
    pace = pace_after(*((size, start + each * size) for size in sizes))
    assert pace.predict(512) == pytest.approx(start + 512 * each)
    assert pace.predict(5120) == pytest.approx(10 * start + 5120 * each)
    smallest = min(sizes)  # no batch was smaller, so it is assumed to cost as much
    assert pace.predict(1) == pytest.approx(start + smallest * each)


def test_single_short_texts_do_not_make_a_long_queue_look_endless() -> None:
    pace = pace_after(*[(5, 0.003)] * 20)
    assert pace.predict(512 * 10) == pytest.approx(0.03)  # the true value is 0.7, and soon learned
    pace.account(512, 0.07)
    assert pace.predict(512 * 10) == pytest.approx(0.7, rel=0.1)


def test_a_batch_that_is_nearly_full_teaches_what_a_full_one_takes() -> None:
    """Else what was measured at start stands, as no other batch has exactly that many tokens."""
    pace = pace_after((128, 0.1), (512, 0.9), *[(484, 0.4)] * 40)
    assert pace.predict(512) == pytest.approx(0.4, rel=0.1)


def test_one_slow_small_batch_does_not_slow_all_full_ones() -> None:
    pace = pace_after((1, 0.05), *[(512, 0.01)] * 40)
    assert pace.predict(512) == pytest.approx((0.05 + 10 * 0.01) / 11)
    expected = isotonic_regression([0.05, 0.02, 0.03], weights=[1, 10, 10]).x
    pace = pace_after((1, 0.05), *[(64, 0.02)] * 10, *[(512, 0.03)] * 10)
    assert [pace.predict(size) for size in (1, 64, 512)] == pytest.approx(expected)


def test_it_follows_a_machine_that_slows_down() -> None:
    sizes = np.random.default_rng(1).integers(1, 512, 80).tolist()
    pace = pace_after(
        *((size, 1e-4 * size) for size in sizes), *((size, 3e-4 * size) for size in sizes)
    )
    assert pace.predict(512) == pytest.approx(512 * 3e-4, rel=0.05)


@given(SIZES, st.integers(1, 10**6))
def test_no_wait_is_negative_or_shorter_than_that_of_less(
    batches: list[tuple[int, float]], tokens: int
) -> None:
    pace = pace_after(*batches)
    assert pace.predict(tokens) >= 0
    assert pace.predict(tokens + 1) >= pace.predict(tokens) - 1e-9


def test_relaxing_makes_predictions_shorter_and_batches_mend_them() -> None:
    pace = pace_after(*[(512, 60.0)] * 3)
    before = pace.predict(512)
    for _ in range(20):
        pace.relax()
    assert pace.predict(512) == pytest.approx(before * 0.95**20)
    for _ in range(60):
        pace.account(512, 60.0)
    assert pace.predict(512) == pytest.approx(60, rel=0.01)


def test_the_margin_covers_nearly_all_and_is_never_below_one() -> None:
    rng, margin = np.random.default_rng(0), Margin()
    ratios = rng.normal(1.4, 0.2, 2000)
    covered = []
    for ratio in ratios:
        covered.append(ratio <= margin.factor)
        margin.account(2.0, 2.0 * ratio)
    assert 0.9 < np.mean(covered[100:]) < 0.999
    for _ in range(200):
        margin.account(2.0, 0.2)
    assert margin.factor == 1.0


def test_what_was_predicted_to_be_over_at_once_teaches_nothing_and_an_outlier_little() -> None:
    margin = Margin()
    margin.account(0.01, 10.0)
    assert margin.factor == 1.0
    margin.account(1.0, 1e6)
    assert margin.factor < LARGEST_RATIO


def test_refusals_lessen_the_margin() -> None:
    margin = Margin()
    for _ in range(100):
        margin.account(1.0, 3.0)
    assert margin.factor == pytest.approx(3.0, rel=0.05)
    for _ in range(100):
        margin.relax()
    assert margin.factor == pytest.approx(1.0, abs=0.05)
