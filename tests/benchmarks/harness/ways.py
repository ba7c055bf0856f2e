"""Ways and samples of a made-up run."""

from __future__ import annotations

from benchmarks.harness.rows import FASTEST_PEER
from benchmarks.harness.ways import Measured, Sample, Way


def way(system: str, connections: int | None = None, paced_by: str | None = None) -> Way:
    cosine = None if system == "st" else 0.99987
    return Way(system, "fp32", lambda _texts, _rate: Measured(1.0), connections, cosine, paced_by)


def sample(rate: float, latencies: list[float] | None = None) -> Sample:
    return Sample(rate, 1e9, rate / 1000, 0.01, latencies or [])


WAYS = [
    way("st"),
    way("slow peer", 16),
    way("peer", 16),
    way("Headscope"),
    way("Headscope", 16),
    way("Headscope", 256, "Headscope, HTTP, 16 connections"),
]
SAMPLES = {
    "st, in process": [sample(10), sample(20), sample(40)],
    "slow peer, HTTP, 16 connections": [sample(4, [9]), sample(4, [9]), sample(6, [9])],
    "peer, HTTP, 16 connections": [sample(5, [1]), sample(5, [2]), sample(5, [3])],
    "Headscope, in process": [sample(20), sample(60), sample(80)],
    "Headscope, HTTP, 16 connections": [sample(10, [1, 2]), sample(15, [3, 4]), sample(20, [5])],
    "Headscope, HTTP, fixed arrivals": [sample(7, [1]), sample(8, [1]), sample(9, [1])],
}
BASES = ("st, in process", FASTEST_PEER)
