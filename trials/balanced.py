"""Replicas behind the balancer that ships, one of which is killed or told to stop under load.

A replica is the application and the server that ship, over an engine that sleeps a known time for
each batch: several of them leave this machine's processor idle, as one does.
"""

from __future__ import annotations

import contextlib
import http.client
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
"""A batch of four texts of four tokens: 40 requests a second."""
CONNECTIONS = 16
"""Of each replica in closed loop: three batches wait while one is computed."""
WORKING_SECONDS, WATCHED_SECONDS = 2.0, 10.0
"""Of load before a replica is stopped, and in all."""
START_SECONDS = 2.0
"""Of the load generator, at most on a busy machine."""
SEEN_SECONDS = 60.0
"""A replica that takes longer never comes back."""
TEXTS = ("the water", "a day", "her house", "my work")
REQUESTS: list[tuple[str, object]] = [("/encode", {"inputs": text}) for text in TEXTS]


class Replica(process.Service):
    """A stub at an address of its own."""

    def __init__(self, host: str, port: int) -> None:
        settings = {"host": host, "port": port, "max_batch_tokens": BATCH_TOKENS, **PATIENT}
        content = Stub(engine={"batch_seconds": BATCH_SECONDS}, settings=settings)
        command = [sys.executable, "-m", "trials.stub"]
        super().__init__(command, port, stdin=content.model_dump_json().encode())
        self.host = host

    def ready(self) -> bool:
        """As the balancer asks."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=process.PROBE_SECONDS)
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            contextlib.closing(connection),
        ):
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == 200
        return False


@dataclass
class Load:
    """Open loop that goes on while something is done."""

    result: Result = field(default_factory=Result)


@dataclass(frozen=True)
class Loss:
    """One replica killed; times by the machine's monotonic clock."""

    result: Result
    stopped: float
    """Nothing that was with the replica is answered from then on."""
    killed: float
    in_flight: int
    """Requests with it once it was stopped."""
    clean_seconds: float
    back_seconds: float

    @property
    def outcomes(self) -> Counter[str]:
        """How requests ended."""
        return Counter(self.result.outcomes)

    @property
    def lost(self) -> int:
        """Requests that were not answered."""
        return self.outcomes.total() - self.outcomes["right"]

    @property
    def late(self) -> int:
        """Those of them that were sent when the replica was dead."""
        after = self.killed - self.result.started
        rows = zip(self.result.outcomes, self.result.due_seconds, strict=True)
        return sum(outcome != "right" and due > after for outcome, due in rows)

    @property
    def at_risk(self) -> int:
        """Most that could be with it as it died: some came after it was stopped."""
        began, ended = (t - self.result.started for t in (self.stopped, self.killed))
        return self.in_flight + sum(began <= due <= ended for due in self.result.due_seconds)


class Group:
    """Replicas behind one balancer."""

    def __init__(self, balancer: Balancer, stack: contextlib.ExitStack) -> None:
        self.balancer = balancer
        self._stack = stack
        self._replicas: list[Replica] = []
        self._servers: list[str] = []
        """The balancer's names of them."""

    def grow(self, count: int) -> None:
        """Add replicas, one after the other, until there are so many."""
        while len(self._replicas) < count:
            host = f"127.0.0.{len(self._replicas) + 2}"
            before = self.balancer.up()
            self._replicas.append(self._start(host))
            self.balancer.names.addresses.append(host)
            self.balancer.wait_until_up(len(self._replicas))
            self._servers += self.balancer.up() - before

    def throughput(self, seconds: float) -> float:
        """Right answers a second in closed loop."""
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
        """`kill -9` of a replica under load, and another at its address as soon as it is dead."""
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
        """SIGTERM to a replica under load: how requests ended, and the replica's exit code."""
        with self._loaded(rate) as load:
            code = self._replicas[number].stop()
            self._restart(number, time.perf_counter())
        return load.result, code

    @contextlib.contextmanager
    def _loaded(self, rate: float) -> Iterator[Load]:
        """So many requests a second, before and after what is done meanwhile."""
        job = Job(self.balancer.port, REQUESTS, rate=rate, count=round(rate * WATCHED_SECONDS))
        load = Load()
        with ThreadPoolExecutor() as pool:
            future = pool.submit(generate, job)
            time.sleep(START_SECONDS + WORKING_SECONDS)
            yield load
            load.result = future.result()

    def _restart(self, number: int, since: float) -> tuple[float, float]:
        """Times of the last request that met the dead replica, and of every replica's return."""
        balancer = self.balancer
        failures, clean = balancer.failures(), since
        self._replicas[number] = replica = self._launch(self._replicas[number].host)
        while not (replica.ready() and len(balancer.up()) == len(self._replicas)):
            time.sleep(0.05)
            if replica.process.poll() is not None or time.perf_counter() > since + SEEN_SECONDS:
                raise process.StartError(f"a replica did not come back: {replica.log[-1000:]}")
            if (found := balancer.failures()) != failures:
                failures, clean = found, time.perf_counter()
        return clean, time.perf_counter()

    def _launch(self, host: str) -> Replica:
        return self._stack.enter_context(Replica(host, self.balancer.replica_port))

    def _start(self, host: str) -> Replica:
        replica = self._launch(host)
        replica.wait_until_ready()
        return replica


@contextlib.contextmanager
def group(*, resend: bool = True) -> Iterator[Group]:
    """No replicas yet, behind a balancer that sends again what one lost, or does not."""
    with balancing(free_port(), resend=resend) as balancer, contextlib.ExitStack() as stack:
        yield Group(balancer, stack)
