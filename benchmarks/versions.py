"""Startup, throughput, latency and memory of two checkouts of the service, in turn.

Run: python -m benchmarks.versions OTHER_CHECKOUT [--rounds N] [--texts N]. Both versions serve the
default model from their own exports, over HTTP, one after the other in every round; figures are
medians of the rounds' ratios, this version's over the other's. The other checkout runs with the
packages of this environment.
"""

from __future__ import annotations

import argparse
import contextlib
import http
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.harness.texts import read_workload
from benchmarks.harness.timing import median_ratio
from testing.blocking import probe
from testing.load import Job, check_right, generate
from testing.memory import MEBIBYTE, family_bytes
from testing.process import Service, clean_environment, free_port

OWN = Path(__file__).resolve().parents[1]
CONNECTIONS = 64
ALONE = 60
"""Number of requests on one connection."""
TEXT = "The animal didn't cross the street because it was too tired"
FIGURES = (
    "start to first reply, s",
    "64 connections, texts/s",
    "1 connection, median ms",
    "all maps of one text, median ms",
    "memory after the load, MiB",
)


@contextlib.contextmanager
def serving(checkout: Path) -> Iterator[tuple[Service, float]]:
    """Serve a checkout, and yield the service and the seconds to its first 200 reply."""
    port = free_port()
    environment = clean_environment(PYTHONPATH=str(checkout))
    command = [sys.executable, "-P", "-m", "service", "serve", "--port", str(port)]
    started = time.perf_counter()
    with Service([*command, "--log-level", "error"], port, environment=environment) as service:

        def answered() -> bool:
            reply = probe(port, "/encode", {"inputs": TEXT, "outputs": ["pooled"]})
            return reply is not None and reply.status == http.HTTPStatus.OK

        service.wait_until(answered, seconds=600, poll_seconds=0.005)
        yield service, time.perf_counter() - started


def measure(checkout: Path, texts: list[str]) -> dict[str, float]:
    """Measure every figure of one version once."""
    fields = {"outputs": ["pooled"], "truncate": True}
    pooled = [("/encode", {"inputs": text} | fields) for text in texts]
    alone = [("/encode", {"inputs": TEXT, "outputs": ["pooled"]})] * ALONE
    maps = [("/attention", {"inputs": TEXT})] * ALONE
    with serving(checkout) as (service, start_seconds):
        load = generate(Job(service.port, pooled, connections=CONNECTIONS, warm_up_seconds=1.0))
        check_right(load)
        medians = []
        for requests in (alone, maps):
            result = generate(Job(service.port, requests, connections=1))
            check_right(result)
            medians.append(statistics.median(result.latencies_ms))
        memory = family_bytes(service.process.pid, "VmRSS") / MEBIBYTE
    return dict(
        zip(FIGURES, (start_seconds, len(texts) / load.seconds, *medians, memory), strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="a checkout of the other version")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=600)
    options = parser.parse_args()
    texts = read_workload(None, options.texts)
    measurements: Mapping[Path, dict[str, list[float]]] = {
        checkout: {name: [] for name in FIGURES} for checkout in (OWN, options.other.resolve())
    }
    for checkout in measurements:  # exports on first use
        with serving(checkout):
            pass
    for _ in range(options.rounds):
        for checkout, figures in measurements.items():
            for name, value in measure(checkout, texts).items():
                figures[name].append(value)
    own, other = measurements.values()
    print(f"{'':<34}{'this':>10}{'other':>10}{'this / other':>14}   of {os.cpu_count()} cores")
    for name in FIGURES:
        medians = statistics.median(own[name]), statistics.median(other[name])
        ratio = median_ratio(own[name], other[name])
        print(f"{name:<34}{medians[0]:>10.2f}{medians[1]:>10.2f}{ratio:>14.3f}")


if __name__ == "__main__":
    main()
