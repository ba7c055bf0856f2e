"""Simulated fleet of `benchmarks.capacity` beside a real one, of replicas with a known cost.

One, two and four replicas run behind the shipped balancer, at several loads with random arrivals.
"""

from __future__ import annotations

import statistics

import numpy as np

from benchmarks.capacity.queueing import BatchCost, mean_latency
from benchmarks.capacity.simulation import Load, Node, Simulation
from testing.generators import generate
from testing.load import Job
from trials.balanced import BATCH_SECONDS, BATCH_TOKENS, REQUESTS, Group, group
from trials.gates import Gate, Scale, exactly, main

TOKENS = 4
"""Tokens of each request."""
NODE = Node(BATCH_SECONDS, 0.0, batch_tokens=BATCH_TOKENS)
LOADS = (0.3, 0.6, 0.8)
NEAR = 0.15
"""Maximum relative difference of a mean latency."""
SIMULATED = 50_000
"""Number of requests in each simulation."""


def compared(replicas: Group, count: int, load: float, seconds: float) -> list[Gate]:
    """Compare the measured and simulated latencies of a fleet at one load."""
    rate = load * count * NODE.capacity(TOKENS)
    job = Job(replicas.balancer.port, REQUESTS, rate=rate, count=round(rate * seconds))
    result = generate(job)
    measured = result.latencies_ms
    drawn = Load(rate, SIMULATED, lambda _: TOKENS)
    simulated = [1e3 * one for one in Simulation([NODE] * count, drawn).run().latencies]
    closed = 1e3 * mean_latency(rate / count, BatchCost(BATCH_SECONDS, 1e-9))
    ratio = statistics.fmean(measured) / statistics.fmean(simulated)
    name = f"{count} replicas at {load:g} of their capacity, {rate:.0f} requests/s"
    return [
        exactly(f"{name}: outcomes", {"right"}, set(result.outcomes)),
        Gate(
            "… mean latency: measured / simulated",
            f"{1 - NEAR:g} … {1 + NEAR:g}",
            f"{ratio:.3f}: {_shown(measured)} measured, {_shown(simulated)} simulated; "
            f"{closed:.0f} by the closed form, for one alone",
            abs(ratio - 1) <= NEAR,
        ),
    ]


def _shown(latencies: list[float]) -> str:
    ranks = (statistics.fmean(latencies), *np.percentile(latencies, (50, 90, 99)))
    return " / ".join(f"{value:.0f}" for value in ranks)


def run(scale: Scale) -> list[Gate]:
    """Return the gates of docs/operations.md; latencies are mean / p50 / p90 / p99, in ms."""
    seconds = float(scale.of(30, 3))
    gates = []
    with group() as replicas:
        for count in (1, 2, 4)[: scale.of(3, 1)]:
            replicas.grow(count)
            for load in LOADS:
                gates += compared(replicas, count, load, seconds)
    return gates


if __name__ == "__main__":
    main(__doc__, capacity=run)
