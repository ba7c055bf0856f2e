"""Ways of embedding texts, measured in turn, each sample between two calibrations."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.harness.calibrate import Calibrator, Precision
from benchmarks.harness.servers import Running

WARM_UP = 100
OPEN_CONNECTIONS = 256
OPEN_LOAD = 0.7
"""Arrival rate relative to the server's rate in closed loop: busy, but not overloaded."""


@dataclass(frozen=True)
class Measured:
    """Measurement of one run of a workload."""

    seconds: float
    cpu_seconds: float = 0.0
    """Processor time of the client, over HTTP."""
    latencies_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Way:
    """System, precision and load pattern with which texts are embedded."""

    system: str
    precision: Precision
    run: Callable[[list[str], float | None], Measured]
    connections: int | None = None
    """Number of connections; None in process."""
    cosine: float | None = None
    """Least cosine with sentence-transformers' vectors in float32; None for these themselves."""
    paced_by: str | None = None
    """Name of the way whose rate in the same round sets the arrival rate; None in closed loop."""

    @property
    def name(self) -> str:
        if self.connections is None:
            return f"{self.system}, in process"
        if self.paced_by is not None:
            return f"{self.system}, HTTP, fixed arrivals"
        noun = "connection" if self.connections == 1 else "connections"
        return f"{self.system}, HTTP, {self.connections} {noun}"


@dataclass(frozen=True)
class Sample:
    """Result of one way in one round."""

    texts_per_second: float
    limit_flop_per_second: float
    share: float
    """Share of the limit, counting the texts' own tokens without padding."""
    client_cores: float
    latencies_ms: list[float]


def in_process(
    system: str,
    precision: Precision,
    seconds: Callable[[list[str]], float],
    cosine: float | None = None,
) -> Way:
    """Return the way of a function that returns the seconds for all texts."""
    return Way(system, precision, lambda texts, _: Measured(seconds(texts)), cosine=cosine)


def over_http(running: Running, connections: Sequence[int], cosine: float) -> list[Way]:
    """Return a closed loop for each number of connections, and arrivals at 0.7 of the last rate."""
    server = running.server

    def way(count: int, paced_by: str | None = None) -> Way:
        def run(texts: list[str], rate: float | None) -> Measured:
            with resumed(running):
                result = running.load(running.requests(texts), count, rate)
            return Measured(result.seconds, result.cpu_seconds, result.latencies_ms)

        return Way(server.name, server.precision, run, count, cosine, paced_by)

    closed = [way(count) for count in connections]
    return [*closed, way(OPEN_CONNECTIONS, closed[-1].name)]


@contextlib.contextmanager
def resumed(running: Running) -> Iterator[None]:
    """Resume a paused server for the block."""
    running.send(signal.SIGCONT)
    try:
        yield
    finally:
        running.send(signal.SIGSTOP)


def measure(
    ways: Sequence[Way],
    texts: list[str],
    flop: float,
    rounds: int,
    calibrators: Mapping[Precision, Calibrator],
) -> dict[str, list[Sample]]:
    """Run the ways in turn, round by round; any failure is raised.

    Args:
        ways: ways to measure; neighbours of one precision share calibrations.
        texts: workload of each way in each round.
        flop: minimum FLOP of the texts.
        rounds: number of samples of a way.
        calibrators: calibrator of each precision.

    """
    samples: dict[str, list[Sample]] = {way.name: [] for way in ways}
    for way in ways:  # a first run is slower than later runs
        if way.paced_by is None:
            way.run(texts[:WARM_UP], None)
    for _ in range(rounds):
        last, after = None, 0.0
        for way in ways:
            limit_now = calibrators[way.precision].flop_per_second
            before = after if way.precision == last else limit_now()
            rate = OPEN_LOAD * samples[way.paced_by][-1].texts_per_second if way.paced_by else None
            result = way.run(texts, rate)
            last, after = way.precision, limit_now()
            samples[way.name].append(sample(result, len(texts), flop, (before + after) / 2))
            print(f"{way.name}: {samples[way.name][-1].texts_per_second:.0f}/s", file=sys.stderr)
    return samples


def sample(result: Measured, texts: int, flop: float, limit: float) -> Sample:
    """Return the sample of a run of `texts` texts that cost `flop`, with the limit at that time."""
    return Sample(
        texts_per_second=texts / result.seconds,
        limit_flop_per_second=limit,
        share=flop / result.seconds / limit,
        client_cores=result.cpu_seconds / result.seconds,
        latencies_ms=result.latencies_ms,
    )
