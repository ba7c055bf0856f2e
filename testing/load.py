"""Load generators, processes of their own.

Closed loop: every connection sends its next request as soon as it has its last reply. Open loop:
requests are due at times that are fixed before the first is sent, whatever the server does. Latency
counts from the due time, so that a stalled server cannot hide its waiting requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvloop

from testing.client import Connection, Lost, Reply, request

SEED = 20170612


@dataclass(frozen=True)
class Job:
    """Requests to send, the server's port, and the pattern of the load."""

    port: int
    requests: list[tuple[str, object]]
    """Path and JSON body of each request, sent in turn."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of every request."""
    replies: list[str] | None = None
    """Expected body of each reply, byte for byte; None: any 200 is right."""
    count: int | None = None
    """Number of requests to send; None: each of `requests` once."""
    connections: int | None = None
    """Number of connections, opened before the first request; None: unlimited, in open loop."""
    rate: float | None = None
    """Requests a second in open loop; None: closed loop."""
    seconds: float | None = None
    """Duration of a closed loop that ends at a time instead of a count."""
    warm_up_seconds: float = 0.0
    """Seconds of closed loop before requests count."""
    patience_seconds: float = 30.0
    """A request that takes longer hangs."""
    address: str = "127.0.0.1"
    """Local address of the connections, by which the service distinguishes clients."""
    resend: bool = False
    """Whether to resend a request, once, whose connection ended before its reply began: a server
    may close an idle connection."""


@dataclass
class Result:
    """Outcome of each request, in the order of their ends."""

    outcomes: list[str] = field(default_factory=list)
    """Outcomes: `right`, `shed` (a 429), `wrong`, `lost`, `hung` or another status."""
    due_seconds: list[float] = field(default_factory=list)
    """Seconds from the start until each request was due, or was sent in closed loop."""
    latencies_ms: list[float] = field(default_factory=list)
    retries_after: list[str | None] = field(default_factory=list)
    """Retry-After of each reply."""
    started: float = 0.0
    ended: float = 0.0
    """Start and end of the run, by the machine's monotonic clock."""
    cpu_seconds: float = 0.0
    """Processor time of the generator."""
    surplus_bytes: int = 0
    """Number of unrequested bytes received after replies."""
    connections: int = 0

    @property
    def seconds(self) -> float:
        """Seconds from the start to the last reply."""
        return self.ended - self.started

    def latencies(self, outcome: str, since: float = 0.0) -> list[float]:
        """Return the milliseconds of the requests with an outcome and due at `since` or later."""
        rows = zip(self.outcomes, self.due_seconds, self.latencies_ms, strict=True)
        return [ms for found, due, ms in rows if found == outcome and due >= since]


def arrivals(count: int, rate: float) -> list[float]:
    """Return the seconds at which requests are due: a Poisson process, the same at every call."""
    generator = random.Random(SEED)
    return list(itertools.accumulate(generator.expovariate(rate) for _ in range(count)))


class Generator:
    """Connections and requests of one job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.result = Result()
        self._contents = [request(path, body, job.headers) for path, body in job.requests]
        self._replies = None if job.replies is None else [one.encode() for one in job.replies]
        self._count = len(self._contents) if job.count is None else job.count
        self._slots = asyncio.Semaphore(job.connections or self._count)
        self._idle: list[Connection] = []
        self._opened: list[Connection] = []

    async def __aenter__(self) -> Generator:
        """Open the number of connections that the job sets."""
        self._idle = [await self._open() for _ in range(self.job.connections or 0)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._opened:
            connection.close()
        await asyncio.gather(*(connection.ended for connection in self._opened))

    async def run(self) -> Result:
        """Warm up, then send all requests and wait for their replies."""
        job = self.job
        if job.warm_up_seconds:
            await self._closed_loop(itertools.count(), job.warm_up_seconds)
        self.result = result = Result(started=time.perf_counter())
        cpu_started = time.process_time()
        if job.rate is not None:
            await self._open_loop(arrivals(self._count, job.rate))
        elif job.seconds is not None:
            await self._closed_loop(itertools.count(), job.seconds)
        else:
            await self._closed_loop(range(self._count))
        result.ended = time.perf_counter()
        result.cpu_seconds = time.process_time() - cpu_started
        result.surplus_bytes = sum(connection.surplus for connection in self._opened)
        result.connections = len(self._opened)
        return result

    async def _closed_loop(self, numbers: Iterable[int], seconds: float = float("inf")) -> None:
        end, todo = time.perf_counter() + seconds, iter(numbers)

        async def work() -> None:
            while (sent := time.perf_counter()) < end and (number := next(todo, None)) is not None:
                await self._one(number, sent)

        async with asyncio.TaskGroup() as group:
            for _ in range(self.job.connections or 1):
                group.create_task(work())

    async def _open_loop(self, due_seconds: list[float]) -> None:
        async with asyncio.TaskGroup() as group:
            for number, after in enumerate(due_seconds):
                due = self.result.started + after
                wait = due - time.perf_counter()
                if wait > 0:
                    await asyncio.sleep(wait)
                group.create_task(self._one(number, due))

    async def _one(self, number: int, due: float) -> None:
        number %= len(self._contents)
        retry_after = None
        try:
            async with asyncio.timeout(self.job.patience_seconds), self._slots:
                reply = await self._exchange(self._contents[number])
            outcome = self._outcome(number, reply)
            retry_after = reply.header("retry-after")
        except TimeoutError:
            outcome = "hung"
        except (Lost, OSError):
            outcome = "lost"
        self.result.outcomes.append(outcome)
        self.result.due_seconds.append(due - self.result.started)
        self.result.latencies_ms.append(1000 * (time.perf_counter() - due))
        self.result.retries_after.append(retry_after)

    async def _exchange(self, content: bytes) -> Reply:
        connection = await self._connection()
        try:
            reply = await connection.ask(content)
        except Lost as lost:
            if lost.begun or not self.job.resend:
                raise
            connection = await self._open()
            reply = await connection.ask(content)
        if connection.open:
            self._idle.append(connection)
        return reply

    async def _connection(self) -> Connection:
        while self._idle:
            if (connection := self._idle.pop()).open:
                return connection
        return await self._open()

    async def _open(self) -> Connection:
        connection = await Connection.to(self.job.port, self.job.address)
        self._opened.append(connection)
        return connection

    def _outcome(self, number: int, reply: Reply) -> str:
        if reply.status == 200:
            wrong = self._replies is not None and reply.body != self._replies[number]
            return "wrong" if wrong else "right"
        return "shed" if reply.status == 429 else str(reply.status)


class LoadError(RuntimeError):
    """Failure of a load generator, or of a load's request."""


def generate(job: Job) -> Result:
    """Run one job in a process of its own.

    Raises:
        LoadError: the process ended early; with its error.

    """
    with _connected(job) as pipe:
        result: Result = _received(pipe)
        return result


@contextlib.contextmanager
def load_beside(job: Job) -> Iterator[None]:
    """Run a job during the block, and kill it at the end.

    Raises:
        LoadError: the generator ended before the block.

    """
    with _connected(job) as pipe:
        yield
        if pipe.poll():
            raise LoadError("the load generator ended before the work beside it")


def check_right(result: Result) -> Result:
    """Return the result if every request was answered right.

    Raises:
        LoadError: a request was not; with its outcome.

    """
    for outcome in result.outcomes:
        if outcome != "right":
            raise LoadError(f"a request of the load was not answered: {outcome}")
    return result


@contextlib.contextmanager
def _connected(job: Job) -> Iterator[Any]:
    """Run a job in a process, which is connected when the block begins and killed at its end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(job, theirs))
    process.start()
    theirs.close()
    try:
        _received(ours)
        yield ours
    finally:
        process.kill()
        process.join()


def _received(pipe: Any) -> Any:
    try:
        found = pipe.recv()
    except EOFError:
        found = "nothing"
    if isinstance(found, str):
        raise LoadError(f"the load generator ended: {found}")
    return found


def _run(job: Job, pipe: Any) -> None:
    """Send None once connected, and the result; or the error's words."""

    async def run() -> Result:
        async with Generator(job) as generator:
            pipe.send(None)
            return await generator.run()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            pipe.send(runner.run(run()))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
