"""Replicas behind the shipped balancer, one of which is killed or stopped under load.

A replica is the shipped application and server over an engine that sleeps a known time for each
batch, so that several replicas leave this machine's processor as idle as one does.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from testing import process
from testing.generators import generate
from testing.haproxy import Balancer, balancing
from testing.load import Job, Result
from testing.process import free_port
from trials.servers import PATIENT
from trials.stub import Stub

BATCH_SECONDS, BATCH_TOKENS = 0.1, 16
"""Seconds and tokens of a batch, of four texts of four tokens: 40 requests a second."""
CONNECTIONS = 16
"""Connections to each replica in closed loop: three batches wait while one is computed."""
WORKING_SECONDS, WATCHED_SECONDS = 2.0, 10.0
"""Seconds of load before a replica is stopped, and in all."""
START_SECONDS = 2.0
"""Maximum seconds for the start of the load generator on a busy machine."""
SEEN_SECONDS = 60.0
"""Seconds after which a replica is taken not to come back."""
TEXTS = ("the water", "a day", "her house", "my work")
REQUESTS: list[tuple[str, object]] = [("/encode", {"inputs": text}) for text in TEXTS]


class Replica(process.Service):
    """Stub at an address of its own."""

    def __init__(self, host: str, port: int) -> None:
        settings = {"host": host, "port": port, "max_batch_tokens": BATCH_TOKENS, **PATIENT}
        content = Stub(engine={"batch_seconds": BATCH_SECONDS}, settings=settings)
        command = [sys.executable, "-m", "trials.stub"]
        super().__init__(command, port, stdin=content.model_dump_json().encode())
        self.address = host


@dataclass
class Load:
    """Result of an open loop, available after the block beside which the loop runs."""

    result: Result = field(default_factory=Result)


@dataclass(frozen=True)
class Loss:
    """Result of killing a replica; times are by the machine's monotonic clock."""

    result: Result
    stopped: float
    """Time at which the replica was paused: from then on it answers nothing."""
    killed: float
    in_flight: int
    """Requests in flight on the replica once it was paused."""
    clean_seconds: float
    back_seconds: float

    @property
    def outcomes(self) -> Counter[str]:
        """Number of requests by outcome."""
        return Counter(self.result.outcomes)

    @property
    def lost(self) -> int:
        """Number of requests that were not answered right."""
        return self.outcomes.total() - self.outcomes["right"]

    @property
    def late(self) -> int:
        """Number of lost requests that were due after the replica had died."""
        after = self.killed - self.result.started
        rows = zip(self.result.outcomes, self.result.due_seconds, strict=True)
        return sum(outcome != "right" and due > after for outcome, due in rows)

    @property
    def at_risk(self) -> int:
        """Maximum number of requests on the replica as it died, late arrivals included."""
        began, ended = (t - self.result.started for t in (self.stopped, self.killed))
        return self.in_flight + sum(began <= due <= ended for due in self.result.due_seconds)


class Group:
    """Replicas behind one balancer."""

    def __init__(self, balancer: Balancer, stack: contextlib.ExitStack) -> None:
        self.balancer = balancer
        self._stack = stack
        self._replicas: list[Replica] = []
        self._servers: list[str] = []
        """Names of the replicas in the balancer."""

    def grow(self, count: int) -> None:
        """Add replicas, one after another, until there are `count`."""
        while len(self._replicas) < count:
            host = f"127.0.0.{len(self._replicas) + 2}"
            before = self.balancer.up()
            self._replicas.append(self._start(host))
            self.balancer.names.addresses.append(host)
            self.balancer.wait_until_up(len(self._replicas))
            self._servers += self.balancer.up() - before

    def throughput(self, seconds: float) -> float:
        """Return the right replies a second in closed loop."""
        connections = CONNECTIONS * len(self._replicas)
        job = Job(
            self.balancer.port,
            REQUESTS,
            connections=connections,
            seconds=seconds,
            warm_up_seconds=1.0,
        )
        result = generate(job)
        return result.outcomes.count("right") / result.seconds

    def lose(self, number: int, rate: float) -> Loss:
        """Kill a replica by SIGKILL under load, and start another at its address."""
        victim = self._replicas[number]
        with self._loaded(rate) as load:
            victim.send(signal.SIGSTOP)
            stopped = time.perf_counter()
            in_flight = self.balancer.sessions(self._servers[number])
            victim.send(signal.SIGKILL)
            victim.process.wait()
            killed = time.perf_counter()
            clean, back = self._restart(number, killed)
        return Loss(load.result, stopped, killed, in_flight, clean - killed, back - killed)

    def drain(self, number: int, rate: float) -> tuple[Result, int]:
        """Stop a replica by SIGTERM under load; return the load's result and the exit code."""
        with self._loaded(rate) as load:
            code = self._replicas[number].stop()
            self._restart(number, time.perf_counter())
        return load.result, code

    @contextlib.contextmanager
    def _loaded(self, rate: float) -> Iterator[Load]:
        """Send `rate` requests a second before, during and after the block."""
        job = Job(self.balancer.port, REQUESTS, rate=rate, count=round(rate * WATCHED_SECONDS))
        load = Load()
        with ThreadPoolExecutor() as pool:
            future = pool.submit(generate, job)
            time.sleep(START_SECONDS + WORKING_SECONDS)
            yield load
            load.result = future.result()

    def _restart(self, number: int, since: float) -> tuple[float, float]:
        """Restart a replica; return the times of the last failure and of all replicas being up."""
        balancer = self.balancer
        failures, clean = balancer.failures(), since
        self._replicas[number] = replica = self._launch(self._replicas[number].address)
        while not (replica.ready() and len(balancer.up()) == len(self._replicas)):
            time.sleep(0.05)
            if replica.process.poll() is not None or time.perf_counter() > since + SEEN_SECONDS:
                raise process.StartError(f"a replica did not come back: {replica.log[-1000:]}")
            if (now := balancer.failures()) != failures:
                failures, clean = now, time.perf_counter()
        return clean, time.perf_counter()

    def _launch(self, host: str) -> Replica:
        return self._stack.enter_context(Replica(host, self.balancer.replica_port))

    def _start(self, host: str) -> Replica:
        replica = self._launch(host)
        replica.wait_until_ready()
        return replica


@contextlib.contextmanager
def group(*, resend: bool = True) -> Iterator[Group]:
    """Yield a group without replicas, whose balancer resends lost requests if `resend` is set."""
    with balancing(free_port(), resend=resend) as balancer, contextlib.ExitStack() as stack:
        yield Group(balancer, stack)
