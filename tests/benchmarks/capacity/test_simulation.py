"""Simulation of a fleet, against queues with known formulas."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pytest

from benchmarks.capacity.queueing import BatchCost, mean_latency
from benchmarks.capacity.simulation import Load, Node, Outcome, Simulation


def one(_: random.Random) -> int:
    """Return one token, for loads on which tokens have no effect."""
    return 1


def simulated(
    node: Node, rate: float, *, replicas: int = 1, tokens: Callable[[random.Random], int] = one
) -> Outcome:
    return Simulation([node] * replicas, Load(rate, 20_000, tokens)).run()


def mean(found: Outcome) -> float:
    return statistics.fmean(found.latencies)


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_request_a_batch_is_the_queue_of_pollaczek_and_khinchine(load: float) -> None:
    """W = S + λ·E[S²] / (2·(1 − ρ)); once of equal requests, once of unequal ones."""
    equal = simulated(Node(0.01, 0.0, batch_tokens=1), load / 0.01)
    waits = 0.01 * load / (2 * (1 - load))
    assert mean(equal) == pytest.approx(0.01 + waits, rel=0.03)
    sizes = (1, 1, 1, 9)
    seconds = [0.001 * size for size in sizes]
    first, second = statistics.fmean(seconds), statistics.fmean(one**2 for one in seconds)
    rate = load / first
    unequal = simulated(
        Node(0.0, 0.001, batch_tokens=1), rate, tokens=lambda chance: chance.choice(sizes)
    )
    waits = rate * second / (2 * (1 - load))
    assert mean(unequal) == pytest.approx(first + waits, rel=0.08)
    assert unequal.busy[0] == pytest.approx(load, rel=0.05)
    assert set(equal.batches) == {1}


@pytest.mark.parametrize("load", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("cost", [BatchCost(0.02, 0.002), BatchCost(0.0, 0.01)])
def test_batches_of_all_that_waits_stay_below_the_closed_form(cost: BatchCost, load: float) -> None:
    rate = load / cost.request_seconds
    node = Node(cost.batch_seconds, cost.request_seconds, batch_tokens=10**9)
    found, most = mean(simulated(node, rate)), mean_latency(rate, cost)
    assert 0.88 * most < found < 1.02 * most


def test_two_engines_are_the_queue_of_erlang() -> None:
    """Exponential service and two servers: W = S / (1 − ρ²)."""
    node = Node(0.0, 1e-6, batch_tokens=1, engines=2)

    def exponential(chance: random.Random) -> int:
        return max(1, round(chance.expovariate(1 / 10_000)))

    found = simulated(node, 0.6 * 2 / 0.01, tokens=exponential)
    assert mean(found) == pytest.approx(0.01 / (1 - 0.36), rel=0.05)


def test_the_front_is_a_queue_of_its_own() -> None:
    """Of two queues of equal requests in a row, the second is always empty."""
    node = Node(0.005, 0.0, batch_tokens=1, front_seconds=0.01)
    found = simulated(node, 50)
    assert mean(found) == pytest.approx(0.005 + 0.01 + 0.01 * 0.5 / (2 * 0.5), rel=0.03)
    assert node.capacity(1) == 100


def test_replicas_share_their_load() -> None:
    """Two replicas behind the balancer are faster than one at half the load; no request is lost."""
    node = Node(0.01, 0.0, batch_tokens=1)
    alone, both = simulated(node, 70), simulated(node, 140, replicas=2)
    assert len(both.latencies) == sum(both.batches) == 20_000
    assert mean(both) < mean(alone)
    assert both.busy == pytest.approx([0.7, 0.7], rel=0.05)


def test_a_batch_holds_what_its_tokens_fit() -> None:
    found = simulated(Node(0.01, 0.001, batch_tokens=8), 300, tokens=lambda _: 2)
    assert max(found.batches) == 4
    longer = simulated(Node(0.01, 0.0, batch_tokens=8), 50, tokens=lambda _: 20)
    assert set(longer.batches) == {1}
