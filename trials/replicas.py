"""Replicas behind the shipped balancer: throughput, latency, `kill -9` of one, and SIGTERM.

A replica is the shipped application and server over an engine that sleeps a known time for each
batch, so that several replicas leave this machine's processor as idle as one does.
"""

from __future__ import annotations

import contextlib
import signal
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from benchmarks.capacity.queueing import BatchCost, mean_latency
from benchmarks.capacity.simulation import Load, Node, Simulation
from testing import process
from testing.haproxy import Balancer, balancing
from testing.load import Job, Result, generate
from testing.process import free_port
from trials.gates import Gate, Scale, at_least, at_most, exactly
from trials.servers import PATIENT, STUB
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
LOAD = 0.4
CLEAN_SECONDS, BACK_SECONDS, LINEAR = 10.0, 30.0, 0.95


class Replica(process.Service):
    """Stub at an address of its own."""

    def __init__(self, host: str, port: int) -> None:
        settings = {"host": host, "port": port, "max_batch_tokens": BATCH_TOKENS, **PATIENT}
        content = Stub(engine={"batch_seconds": BATCH_SECONDS}, settings=settings)
        super().__init__(STUB, port, stdin=content.model_dump_json().encode())
        self.address = host


@dataclass
class Loss:
    """Result of a load during which a replica is stopped; times are by the monotonic clock."""

    result: Result = field(default_factory=Result)
    stopped: float = 0.0
    """Time at which the replica was paused: from then on it answers nothing."""
    ended: float = 0.0
    """Time at which the replica had ended."""
    in_flight: int = 0
    """Requests in flight on the replica once it was paused."""
    code: int = 0
    clean_seconds: float = 0.0
    back_seconds: float = 0.0

    @property
    def right(self) -> int:
        """Number of requests that were answered right."""
        return self.result.outcomes.count("right")

    @property
    def late(self) -> int:
        """Number of lost requests that were due after the replica had died."""
        rows = zip(self.result.outcomes, self.result.due_seconds, strict=True)
        after = self.ended - self.result.started
        return sum(outcome != "right" and due > after for outcome, due in rows)

    @property
    def at_risk(self) -> int:
        """Maximum number of requests on the replica as it died, late arrivals included."""
        began, ended = (t - self.result.started for t in (self.stopped, self.ended))
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
            self._replicas.append(self._launch(host))
            self._replicas[-1].wait_until_ready()
            self.balancer.names.addresses.append(host)
            self.balancer.wait_until_up(len(self._replicas))
            self._servers += self.balancer.up() - before

    def throughput(self, seconds: float) -> float:
        """Return the right replies a second in closed loop."""
        connections, port = CONNECTIONS * len(self._replicas), self.balancer.port
        job = Job(port, REQUESTS, connections=connections, seconds=seconds, warm_up_seconds=1.0)
        result = generate(job)
        return result.outcomes.count("right") / result.seconds

    def lose(self, number: int, rate: float, *, kill: bool) -> Loss:
        """Stop a replica under load by SIGKILL or SIGTERM, and start another at its address."""
        loss, victim = Loss(), self._replicas[number]
        job = Job(self.balancer.port, REQUESTS, rate=rate, count=round(rate * WATCHED_SECONDS))
        with ThreadPoolExecutor() as pool:
            result = pool.submit(generate, job)
            time.sleep(START_SECONDS + WORKING_SECONDS)
            if kill:
                victim.send(signal.SIGSTOP)
                loss.stopped = time.perf_counter()
                loss.in_flight = self.balancer.sessions(self._servers[number])
                victim.send(signal.SIGKILL)
                victim.process.wait()
            else:
                loss.code = victim.stop()
            loss.ended = time.perf_counter()
            self._restart(number, loss)
            loss.result = result.result()
        return loss

    def _restart(self, number: int, loss: Loss) -> None:
        """Restart a replica; note the time of the last failure, and of all replicas being up."""
        balancer, failures = self.balancer, self.balancer.failures()
        self._replicas[number] = replica = self._launch(self._replicas[number].address)
        while not (replica.ready() and len(balancer.up()) == len(self._replicas)):
            time.sleep(0.05)
            seconds = time.perf_counter() - loss.ended
            if replica.process.poll() is not None or seconds > SEEN_SECONDS:
                raise process.StartError(f"a replica did not come back: {replica.log[-1000:]}")
            if (now := balancer.failures()) != failures:
                failures, loss.clean_seconds = now, seconds
        loss.back_seconds = time.perf_counter() - loss.ended

    def _launch(self, host: str) -> Replica:
        return self._stack.enter_context(Replica(host, self.balancer.replica_port))


@contextlib.contextmanager
def group(*, resend: bool = True) -> Iterator[Group]:
    """Yield a group without replicas, whose balancer resends lost requests if `resend` is set."""
    with balancing(free_port(), resend=resend) as balancer, contextlib.ExitStack() as stack:
        yield Group(balancer, stack)


def killed(group: Group, scale: Scale, capacity: float, *, resend: bool) -> list[Gate]:
    """Kill one of two replicas several times, each in turn."""
    count, rate = scale.of(10, 1), LOAD * capacity
    losses = [group.lose(number % 2, rate, kill=True) for number in range(count)]
    sent, right = sum(len(one.result.outcomes) for one in losses), sum(one.right for one in losses)
    at_risk = sum(one.at_risk for one in losses)
    name = f"kill -9 of one of two at {LOAD:g} of capacity ×{count}"
    kind = "lost" if resend else "lost without the balancer's second attempt"
    clean = max(one.clean_seconds for one in losses)
    back = max(one.back_seconds for one in losses)
    most = 0 if resend else at_risk
    return [
        at_most(f"{name}: {kind}, of {at_risk} in flight", most, sent - right),
        exactly("… lost by those who came later", 0, sum(one.late for one in losses)),
        at_least("… answered", 0.9, right / sent),
        at_most("… routing clean", CLEAN_SECONDS * scale.slack, clean, " s"),
        at_most("… both replicas back", BACK_SECONDS * scale.slack, back, " s"),
    ]


def drained(group: Group, scale: Scale, capacity: float) -> list[Gate]:
    """Stop one of two replicas by SIGTERM, each in turn."""
    count, rate = scale.of(5, 1), LOAD * capacity
    ends = [group.lose(number % 2, rate, kill=False) for number in range(count)]
    outcomes = {outcome for one in ends for outcome in one.result.outcomes}
    codes, fine = {one.code for one in ends}, {0, -int(signal.SIGTERM)}
    return [
        exactly(f"SIGTERM to one of two ×{count}: outcomes", {"right"}, outcomes),
        Gate("… exit code", "0, or by that signal", str(codes), codes <= fine),
    ]


def replicas(scale: Scale) -> list[Gate]:
    """Return the gates of docs/operations.md about the balancer."""
    seconds, least = float(scale.of(15, 2)), LINEAR / scale.slack
    rates, gates = dict[int, float](), list[Gate]()
    with group() as fleet:
        for count in (1, 2, 4)[: scale.of(3, 2)]:
            fleet.grow(count)
            rates[count] = fleet.throughput(seconds)
            if count > 1:
                share = rates[count] / count / rates[1]
                gates.append(at_least(f"throughput of {count} / {count} times one's", least, share))
    for resend in (True, False):
        with group(resend=resend) as fleet:
            fleet.grow(2)
            gates += killed(fleet, scale, rates[2], resend=resend)
            if resend:
                after = fleet.throughput(seconds) / rates[2]
                gates.append(at_least("… throughput afterwards", least, after))
                gates += drained(fleet, scale, rates[2])
    return gates


TOKENS = 4
"""Tokens of each request."""
NODE = Node(BATCH_SECONDS, 0.0, batch_tokens=BATCH_TOKENS)
NEAR = 0.15
"""Maximum relative difference of a mean latency."""
SIMULATED = 50_000
"""Number of requests in each simulation."""


def compared(fleet: Group, count: int, load: float, seconds: float) -> list[Gate]:
    """Compare the measured and simulated latencies of a fleet at one load with random arrivals."""
    rate = load * count * NODE.capacity(TOKENS)
    result = generate(Job(fleet.balancer.port, REQUESTS, rate=rate, count=round(rate * seconds)))
    drawn = Load(rate, SIMULATED, lambda _: TOKENS)
    simulated = [1e3 * one for one in Simulation([NODE] * count, drawn).run().latencies]
    closed = 1e3 * mean_latency(rate / count, BatchCost(BATCH_SECONDS, 1e-9))
    ratio = statistics.fmean(result.latencies_ms) / statistics.fmean(simulated)
    name = f"{count} replicas at {load:g} of their capacity, {rate:.0f} requests/s"
    return [
        exactly(f"{name}: outcomes", {"right"}, set(result.outcomes)),
        Gate(
            "… mean latency: measured / simulated",
            f"{1 - NEAR:g} … {1 + NEAR:g}",
            f"{ratio:.3f}: {_shown(result.latencies_ms)} measured, {_shown(simulated)} simulated; "
            f"{closed:.0f} by the closed form, for one alone",
            abs(ratio - 1) <= NEAR,
        ),
    ]


def _shown(latencies: list[float]) -> str:
    ranks = (statistics.fmean(latencies), *np.percentile(latencies, (50, 90, 99)))
    return " / ".join(f"{value:.0f}" for value in ranks)


def capacity(scale: Scale) -> list[Gate]:
    """Hold the simulated fleets of docs/operations.md against one, two and four real replicas.

    Latencies are mean / p50 / p90 / p99, in ms.
    """
    gates = []
    with group() as fleet:
        for count in (1, 2, 4)[: scale.of(3, 1)]:
            fleet.grow(count)
            for load in (0.3, 0.6, 0.8):
                gates += compared(fleet, count, load, float(scale.of(30, 3)))
    return gates
