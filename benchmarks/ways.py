"""Every way of embedding, measured in turn, each sample between two calibrations."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.calibrate import Calibrator, Precision
from benchmarks.load import Job, Result
from benchmarks.servers import Running
from benchmarks.workload import workload_flop

WARM_UP = 100
OPEN_CONNECTIONS = 256
OPEN_LOAD = 0.7
"""Of the rate a server reaches in closed loop: busy, and not yet drowned."""


@dataclass(frozen=True)
class Way:
    """One way to have texts embedded."""

    system: str
    precision: Precision
    run: Callable[[list[str], float | None], Result]
    connections: int | None = None
    """None is in process."""
    paced_by: str | None = None
    """The way whose rate in the same round sets this one's arrivals; None is closed loop."""

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
    """What one way achieved in one round."""

    texts_per_second: float
    limit_flop_per_second: float
    share: float
    """Of the limit, counting the texts' own tokens, without padding."""
    client_cores: float
    latencies_ms: list[float]


def in_process(system: str, precision: Precision, seconds: Callable[[list[str]], float]) -> Way:
    return Way(system, precision, lambda texts, _: Result(seconds(texts), 0.0, []))


def over_http(running: Running, connections: Sequence[int]) -> list[Way]:
    """Closed loop over each number of connections, then arrivals at 0.7 of the last one's rate."""
    server = running.server

    def way(count: int, paced_by: str | None = None) -> Way:
        def run(texts: list[str], rate: float | None) -> Result:
            with resumed(running):
                bodies = [server.body(text) for text in texts]
                return generate(Job(running.url, bodies, count, rate))

        return Way(server.name, server.precision, run, count, paced_by)

    closed = [way(count) for count in connections]
    return [*closed, way(OPEN_CONNECTIONS, closed[-1].name)]


def generate(job: Job) -> Result:
    """Run the load generator in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.load"]
    completed = subprocess.run(
        command, input=json.dumps(asdict(job)), stdout=subprocess.PIPE, text=True, check=True
    )
    return Result(**json.loads(completed.stdout))


@contextlib.contextmanager
def resumed(running: Running) -> Iterator[None]:
    """A paused server, awake for a while."""
    running.send(signal.SIGCONT)
    try:
        yield
    finally:
        running.send(signal.SIGSTOP)


def measure(
    ways: Sequence[Way],
    texts: list[str],
    lengths: list[int],
    rounds: int,
    calibrators: Mapping[Precision, Calibrator],
) -> dict[str, list[Sample]]:
    """Run the ways in turn, round by round; one that fails once is an error.

    Args:
        ways: all of them; those of one precision stand together best, and share calibrations.
        texts: what each way is given in each round.
        lengths: the tokens of each text.
        rounds: samples of a way.
        calibrators: of each precision.

    """
    samples: dict[str, list[Sample]] = {way.name: [] for way in ways}
    for way in ways:
        if way.paced_by is None:
            way.run(
                texts[:WARM_UP], None
            )  # the first run of anything pays for what later ones have
    flop = workload_flop(lengths)
    for _ in range(rounds):
        last, after = None, 0.0
        for way in ways:
            limit_now = calibrators[way.precision].flop_per_second
            before = after if way.precision == last else limit_now()
            rate = OPEN_LOAD * samples[way.paced_by][-1].texts_per_second if way.paced_by else None
            result = way.run(texts, rate)
            last, after = way.precision, limit_now()
            limit = (before + after) / 2
            samples[way.name].append(
                Sample(
                    texts_per_second=len(texts) / result.seconds,
                    limit_flop_per_second=limit,
                    share=flop / result.seconds / limit,
                    client_cores=result.cpu_seconds / result.seconds,
                    latencies_ms=result.latencies_ms,
                )
            )
            print(f"{way.name}: {samples[way.name][-1].texts_per_second:.0f}/s", file=sys.stderr)
    return samples
