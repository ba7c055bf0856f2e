"""Closed form of the latency, against its known limits."""

from __future__ import annotations

import pytest

from benchmarks.capacity.queueing import BatchCost, mean_latency


def test_a_request_that_is_always_alone_waits_for_nothing() -> None:
    cost = BatchCost(0.02, 0.005)
    assert mean_latency(1e-9, cost) == pytest.approx(cost(1), rel=1e-6)


def test_under_heavy_load_it_is_one_and_a_half_batches() -> None:
    """A batch holds the arrivals of the batch before: T = τ₀ + α·λ·T; half a batch is the wait."""
    cost = BatchCost(10.0, 0.001)
    for rate in (500.0, 900.0):
        batch = 10.0 / (1 - rate * 0.001)
        assert mean_latency(rate, cost) == pytest.approx(1.5 * batch, rel=1e-3)


def test_more_than_the_largest_batches_can_do_is_refused() -> None:
    with pytest.raises(ValueError, match=r"more than 1 / 0\.005 s"):
        mean_latency(200.0, BatchCost(0.0, 0.005))


def test_capacity_is_of_full_batches() -> None:
    assert BatchCost(0.1, 0.025).capacity(4) == pytest.approx(20)
