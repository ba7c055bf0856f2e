"""A load generator for a fixed time: `python -m benchmarks.gpu.load`, a `Job` as a line of JSON in.

Closed loop over `benchmarks.load`'s connections. Several of these run at once, since one process
cannot ask as fast as a GPU answers: each writes a line when it is connected, and waits for one
before it begins.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

import uvloop

from benchmarks.load import Connection

WARM_UP = 0.2
"""Of the time, before it counts."""


@dataclass(frozen=True)
class Job:
    """What to send where, for how long."""

    url: str
    accept: str
    bodies: list[dict[str, object]]
    """One a request, sent as JSON, again and again."""
    connections: int
    seconds: float


@dataclass(frozen=True)
class Result:
    """What came of it; times by the machine's monotonic clock."""

    started: float
    ended: float
    cpu_seconds: float
    latencies_ms: list[float]
    """One a request."""


def generate(jobs: Sequence[Job]) -> list[Result]:
    """Run each job in a process of its own, all at once.

    Raises:
        RuntimeError: a process ended early: what it said last.

    """
    command = [sys.executable, "-m", "benchmarks.gpu.load"]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in jobs
    ]
    try:
        for process, job in zip(processes, jobs, strict=True):
            say(process, json.dumps(asdict(job)))
        for process in processes:
            hear(process)
        for process in processes:
            say(process, "begin")
        return [Result(**json.loads(hear(process))) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    """A line from a process.

    Raises:
        RuntimeError: there is none.

    """
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    if not line:
        words = process.stderr.read().strip().splitlines() or ["nothing"]
        raise RuntimeError(f"the load generator ended: {words[-1]}")
    return line


def encode(path: str, accept: str, body: dict[str, object]) -> bytes:
    """One whole request."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def connect(job: Job) -> list[Connection]:
    url = urlsplit(job.url)
    connections = [Connection(url.hostname, url.port) for _ in range(job.connections)]
    for connection in connections:
        await connection.open()
    return connections


async def closed_loop(
    connections: Sequence[Connection], requests: Iterator[bytes], seconds: float
) -> Result:
    """Every connection asks again as soon as it is answered, until the time is over."""
    latencies: list[float] = []
    started, cpu_started = time.monotonic(), time.process_time()

    async def work(connection: Connection) -> None:
        while (sent := time.monotonic()) < started + seconds:
            await connection.ask(next(requests))
            latencies.append((time.monotonic() - sent) * 1000)

    async with asyncio.TaskGroup() as group:
        for connection in connections:
            group.create_task(work(connection))
    return Result(started, time.monotonic(), time.process_time() - cpu_started, latencies)


async def run(job: Job) -> Result:
    path = urlsplit(job.url).path
    requests = itertools.cycle([encode(path, job.accept, body) for body in job.bodies])
    connections = await connect(job)
    print("ready", flush=True)
    sys.stdin.readline()
    await closed_loop(connections, requests, WARM_UP * job.seconds)
    return await closed_loop(connections, requests, job.seconds)


def main() -> None:
    job = Job(**json.loads(sys.stdin.readline()))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(asdict(runner.run(run(job)))), flush=True)


if __name__ == "__main__":
    main()
