"""A load generator: `python -m benchmarks.load < job.json`, see `Job`; prints a `Result` as JSON.

It runs in a process of its own, in raw asyncio streams: an HTTP library would take more of a core
than the server that is measured. What it takes itself is part of the result.

Closed loop: every connection sends its next request as soon as it has its last reply. Open loop:
requests are due at fixed times, whatever the server does, and latency counts from the time at which
a request was due, so that a server that stalls cannot hide how many waited for it.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

import uvloop

SEED = 20170612


@dataclass(frozen=True)
class Job:
    """What to send where, and how."""

    url: str
    bodies: list[dict[str, object]]
    """One a request, sent as JSON."""
    connections: int
    rate: float | None = None
    """Requests a second in open loop; None is closed loop."""


@dataclass(frozen=True)
class Result:
    """What it took."""

    seconds: float
    cpu_seconds: float
    """Of this process."""
    latencies_ms: list[float]


def arrivals(count: int, rate: float) -> list[float]:
    """Seconds at which requests are due: a Poisson process, the same at every call."""
    generator = random.Random(SEED)
    due, times = 0.0, []
    for _ in range(count):
        due += generator.expovariate(rate)
        times.append(due)
    return times


Todo = Iterator[tuple[float | None, bytes]]


class Connection:
    """One connection to a server; a server may close it while it is idle."""

    def __init__(self, host: str | None, port: int | None) -> None:
        self._address = (host, port)

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(*self._address)

    async def ask(self, request: bytes) -> None:
        """Send a request and read its reply, over a new connection if this one is gone."""
        try:
            self._writer.write(request)
            await read_reply(self._reader)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            if getattr(error, "partial", b""):
                raise
            await self.open()
            self._writer.write(request)
            await read_reply(self._reader)


async def work(connection: Connection, todo: Todo, latencies: list[float]) -> None:
    """Take requests from the shared iterator until there are none left."""
    for due, request in todo:
        if due is not None:
            await asyncio.sleep(due - time.perf_counter())
        sent = time.perf_counter() if due is None else due
        await connection.ask(request)
        latencies.append((time.perf_counter() - sent) * 1000)


async def read_reply(reader: asyncio.StreamReader) -> None:
    """Read one reply whole; any but a 200 ends the run."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise SystemExit(head.decode())
    if b"\r\ntransfer-encoding: chunked" in head:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
    else:
        _, _, rest = head.partition(b"\r\ncontent-length:")
        await reader.readexactly(int(rest.partition(b"\r\n")[0]))


def encode(path: str, body: dict[str, object]) -> bytes:
    """One whole request."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def run(job: Job) -> Result:
    """Open the connections, then send everything and read every reply."""
    url = urlsplit(job.url)
    requests = [encode(url.path, body) for body in job.bodies]
    connections = [Connection(url.hostname, url.port) for _ in range(job.connections)]
    for connection in connections:
        await connection.open()
    latencies: list[float] = []
    started, cpu_started = time.perf_counter(), time.process_time()
    due = (
        [None] * len(requests)
        if job.rate is None
        else [started + at for at in arrivals(len(requests), job.rate)]
    )
    todo: Todo = iter(zip(due, requests, strict=True))
    async with asyncio.TaskGroup() as group:
        for connection in connections:
            group.create_task(work(connection, todo, latencies))
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    return Result(seconds, cpu_seconds, latencies)


def main() -> None:
    job = Job(**json.load(sys.stdin))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(asdict(runner.run(run(job)))))


if __name__ == "__main__":
    main()
