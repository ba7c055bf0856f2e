"""An open-loop load generator: `python -m trials.load RESULT.json < job.json`, see `Job`, `Result`.

It runs in a process of its own. Requests are due at times that are fixed before the first is sent,
and latency counts from then, so that a server that stalls cannot hide who waited for it. A request
takes a connection that is idle, or opens another.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import uvloop

from benchmarks.load import arrivals
from trials.wire import Connection, Lost, Reply, request

GIVE_UP_SECONDS = 30.0
"""A reply that takes longer hangs."""


@dataclass(frozen=True)
class Job:
    """What to send where, and how fast."""

    port: int
    path: str
    bodies: list[dict[str, object]]
    """Sent in turn."""
    replies: list[str]
    """What each must be answered with, byte for byte."""
    rate: float
    """Requests a second."""
    count: int


@dataclass
class Result:
    """How each request ended: `right`, `shed`, `wrong`, `lost`, `hung` or a status."""

    outcomes: list[str]
    due_seconds: list[float]
    """Since the start."""
    latencies_ms: list[float]
    retries_after: list[str | None]
    """The Retry-After of each that was shed."""
    surplus_bytes: int = 0
    """That came after a reply and were asked for by nobody."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    connections: int = 0

    def latencies(self, outcome: str, since: float = 0.0) -> list[float]:
        """In ms, of those with an outcome that were due since then."""
        rows = zip(self.outcomes, self.due_seconds, self.latencies_ms, strict=True)
        return [ms for found, due, ms in rows if found == outcome and due >= since]


@dataclass
class Generator:
    """One run."""

    job: Job
    result: Result
    idle: list[Connection] = field(default_factory=list)
    opened: list[Connection] = field(default_factory=list)

    async def run(self) -> None:
        """Send everything when it is due, and wait for all replies."""
        job = self.job
        contents = [request(job.path, body) for body in job.bodies]
        replies = [reply.encode() for reply in job.replies]
        started, cpu_started = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for number, due in enumerate(self.result.due_seconds):
                wait = started + due - time.perf_counter()
                if wait > 0:
                    await asyncio.sleep(wait)
                one = number % len(contents)
                group.create_task(self._one(number, contents[one], replies[one], started + due))
        self.result.seconds = time.perf_counter() - started
        self.result.cpu_seconds = time.process_time() - cpu_started
        self.result.surplus_bytes = sum(connection.surplus for connection in self.opened)
        self.result.connections = len(self.opened)

    async def _one(self, number: int, content: bytes, expected: bytes, due: float) -> None:
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                connection = await self._connection()
                reply = await connection.ask(content)
            outcome = _outcome(reply, expected)
            self.result.retries_after[number] = reply.header("retry-after")
            if connection.open:
                self.idle.append(connection)
        except TimeoutError:
            outcome = "hung"
        except (Lost, OSError):
            outcome = "lost"
        self.result.outcomes[number] = outcome
        self.result.latencies_ms[number] = 1000 * (time.perf_counter() - due)

    async def _connection(self) -> Connection:
        while self.idle:
            if (connection := self.idle.pop()).open:
                return connection
        connection = await Connection.to(self.job.port)
        self.opened.append(connection)
        return connection


def _outcome(reply: Reply, expected: bytes) -> str:
    if reply.status == 200:
        return "right" if reply.body == expected else "wrong"
    return "shed" if reply.status == 429 else str(reply.status)


async def generate(job: Job) -> Result:
    """Run a job in a process of its own.

    Its result comes in a file: of one that came through a pipe the middle was missing now and then.

    Raises:
        RuntimeError: the process failed.

    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = (sys.executable, "-m", "trials.load", str(path))
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
        await process.communicate(json.dumps(asdict(job)).encode())
        if process.returncode:
            raise RuntimeError(f"the load generator ended with {process.returncode}")
        return Result(**json.loads(path.read_bytes()))


def main() -> None:
    job = Job(**json.load(sys.stdin))
    nothing = [None] * job.count
    result = Result([""] * job.count, arrivals(job.count, job.rate), [0.0] * job.count, [*nothing])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Generator(job, result).run())
    Path(sys.argv[1]).write_text(json.dumps(asdict(result)), encoding="utf-8")


if __name__ == "__main__":
    main()
