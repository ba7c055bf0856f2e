"""Rate at which front ends feed a device, by their number and the texts of a request.

Run: python -m benchmarks.feeding [--workers N …] [--texts N …] [--seconds N] [--workload FILE]

Headscope serves with the engine that computes nothing, over 64 connections for each worker. With
several workers each has an engine of its own. From the processor time of a text follows the number
of cores that a device of some rate keeps busy with HTTP, JSON and tokenising.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.front_end import CONNECTIONS, processor_seconds
from benchmarks.harness.report import markdown
from benchmarks.harness.texts import read_workload
from testing.load import Job, check_right, generate
from testing.memory import family
from testing.process import Service, clean_environment, free_port

DEVICE_TEXTS = 20_000
"""Texts of the workload that a GPU such as an H100 computes in a second, at least."""


@contextlib.contextmanager
def serving(workers: int) -> Iterator[Service]:
    """Serve with some workers and the engine that computes nothing."""
    port = free_port()
    options = ["--engine", "fake", "--log-level", "error", "--workers", str(workers)]
    command = [sys.executable, "-m", "service", "serve", *options, "--port", str(port)]
    with Service(command, port, environment=clean_environment()) as service:
        service.wait_until_ready()
        yield service


def measure(
    service: Service, texts: Sequence[str], at_once: int, workers: int, seconds: float
) -> tuple[float, float]:
    """Return the texts of a second, and the milliseconds of processor time of a text."""
    lists = [list(texts[start : start + at_once]) for start in range(0, len(texts), at_once)]
    bodies = [{"inputs": part, "outputs": ["pooled"], "truncate": True} for part in lists]
    requests: list[tuple[str, object]] = [("/encode", body) for body in bodies]
    processes = family(service.process.pid)
    began = sum(map(processor_seconds, processes))
    connections = CONNECTIONS * workers
    result = check_right(
        generate(Job(service.port, requests, connections=connections, seconds=seconds))
    )
    spent = sum(map(processor_seconds, processes)) - began
    count = at_once * len(result.outcomes)
    return count / result.seconds, 1000 * spent / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--workload", type=Path)
    options = parser.parse_args()
    texts = read_workload(options.workload, 384)
    rows = []
    for workers in options.workers:
        with serving(workers) as service:
            for at_once in options.texts:
                measure(service, texts, at_once, workers, 1.0)  # the first requests are slower
                samples = [
                    measure(service, texts, at_once, workers, options.seconds)
                    for _ in range(options.rounds)
                ]
                rate, spent = (statistics.median(figures) for figures in zip(*samples, strict=True))
                cores = DEVICE_TEXTS * spent / 1000
                rows.append((workers, at_once, f"{rate:.0f}", f"{spent:.3f}", f"{cores:.1f}"))
    print(f"{os.cpu_count()} cores, which the load generator shares")
    header = ("front ends", "texts a request", "texts/s", "processor time of a text, ms")
    print(markdown((*header, f"cores for {DEVICE_TEXTS} texts/s"), rows))


if __name__ == "__main__":
    main()
