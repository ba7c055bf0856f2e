"""Plans, closed form and simulation of a fleet, against sums by hand and known formulas."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pytest

from benchmarks.capacity.__main__ import main
from benchmarks.capacity.plan import Machine, Traffic, corpus, fleet
from benchmarks.capacity.queueing import BatchCost, mean_latency
from benchmarks.capacity.simulation import Load, Node, Outcome, Simulation

MACHINE = Machine(Node(0.0, 0.001, batch_tokens=100), memory_bytes=10, dollars_an_hour=0.5)
"""1,000 tokens, and so 50 texts of 20 tokens, a second."""


def test_a_fleet_bears_the_loss_of_some() -> None:
    traffic = Traffic(rate=1000, tokens=20, request_bytes=100, reply_bytes=1000)
    found = fleet(MACHINE, traffic, utilization=0.5, latency_seconds=0.1, spare_share=0.2)
    assert (found.replicas, found.spare) == (50, 10)
    assert found.memory_bytes == 500
    assert (found.received_bits, found.sent_bits) == (800_000, 8_000_000)
    assert found.in_flight == 100
    assert found.dollars_a_month == 50 * 0.5 * 720


def test_the_smallest_fleet_has_one_to_spare() -> None:
    traffic = Traffic(rate=1, tokens=20, request_bytes=100, reply_bytes=1000)
    found = fleet(MACHINE, traffic, utilization=0.5, latency_seconds=0.1, spare_share=0.0)
    assert (found.replicas, found.spare) == (2, 1)


def test_a_corpus() -> None:
    found = corpus(MACHINE, texts=3_600_000, tokens=20, machines=5, efficiency=0.8, features=4)
    assert found.machine_hours == pytest.approx(25)
    assert found.days == pytest.approx(5 / 24)
    assert found.dollars == pytest.approx(12.5)
    assert found.stored_bytes == 16 * 3_600_000


@pytest.mark.parametrize(
    ("arguments", "row"),
    [
        (["latency", "--requests", "500", "--replicas", "2", "--loads", "0.5"], "| 2 | 0.5 |"),
        (["fleet", "--requests", "500", "--rate", "1000"], "| replicas | "),
        (["corpus", "--texts", "1000000"], "| vectors, float32 | 0.0 TiB |"),
    ],
)
def test_each_table_is_printed(
    arguments: list[str], row: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    assert row in capsys.readouterr().out


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
