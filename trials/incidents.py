"""Failures and loads caused in watched services: by clients, processes, and the machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import psutil

from testing.client import Lost, ask, request
from testing.haproxy import Balancer
from testing.process import Service
from trials.faults import REPLY, TRIGGERS, stall
from trials.prometheus import KEY, SCRAPE_SECONDS
from trials.servers import BINARY, meanwhile

Incident = Callable[[Service, Path], contextlib.AbstractAsyncContextManager[None]]
"""Function of a service and its artifact's folder; its context lasts as long as the incident."""
REPLICA, BROKEN_REPLICA = "127.0.0.2", "127.0.0.3"
SHORT = {"inputs": ["a river", "the sea"]}
LONG = {"inputs": "the water " * 120}
FLOOD = {"inputs": ["the water of the river " * 20] * 100}
SMALL_FLOOD = {"inputs": ["the water of the river"] * 4}


async def asking(
    service: Service,
    body: object,
    path: str = "/encode",
    headers: Mapping[str, str] = KEY,
    pause: float = 0.05,
) -> None:
    """Send one request after another without end, and ignore replies and lost connections."""
    while True:
        with contextlib.suppress(OSError, Lost):
            await ask(service.port, path, body, **headers)
        await asyncio.sleep(pause)


def normal(service: Service) -> contextlib.AbstractAsyncContextManager[None]:
    """Run two clients of /encode, one of /attention, a probe, and a client with wrong requests."""
    return meanwhile(
        *(asking(service, SHORT) for _ in range(2)),
        asking(service, {"inputs": "a river", "layers": [0]}, "/attention"),
        asking(service, {"inputs": []}),
        asking(service, None, "/health/ready", {}),
    )


def without_encode(service: Service) -> contextlib.AbstractAsyncContextManager[None]:
    """Run a client of /attention only."""
    return meanwhile(asking(service, {"inputs": "a river", "layers": [0]}, "/attention"))


def sending(
    *bodies: object,
    path: str = "/encode",
    headers: Mapping[str, str] = KEY,
    pause: float = 0.05,
) -> Incident:
    """Return the incident of a client of each body, which sends it again and again."""

    def incident(service: Service, _: Path) -> contextlib.AbstractAsyncContextManager[None]:
        return meanwhile(*(asking(service, body, path, headers, pause) for body in bodies))

    return incident


@contextlib.contextmanager
def without_graphs(folder: Path) -> Iterator[None]:
    """Rename the artifact's graphs during the block, so that no engine can be started."""
    graphs = [*folder.glob("*.onnx")]
    for graph in graphs:
        graph.rename(graph.with_suffix(".gone"))
    try:
        yield
    finally:
        for graph in graphs:
            graph.with_suffix(".gone").rename(graph)


@contextlib.asynccontextmanager
async def engine_lost(service: Service, folder: Path) -> AsyncIterator[None]:
    """Let a batch hang, while no engine can be started in place of the hanging engine."""
    with without_graphs(folder):
        async with sending({"inputs": f"a {TRIGGERS['hang']}"}, pause=0.5)(service, folder):
            yield


@contextlib.asynccontextmanager
async def worker_lost(service: Service, folder: Path) -> AsyncIterator[None]:
    """Kill a worker, while none can be started in its place."""
    with without_graphs(folder):
        service.children[0].kill()
        yield


@contextlib.asynccontextmanager
async def engine_killed(service: Service, folder: Path) -> AsyncIterator[None]:
    """Kill the workers' PyTorch engines, then send requests to them."""
    body = {"inputs": "a", "backend": "torch"}
    await ask(service.port, "/encode", body, **KEY)
    for worker in service.children:
        for child in worker.children():
            child.kill()
    async with sending(*[body] * 4)(service, folder):
        yield


@contextlib.asynccontextmanager
async def worker_killed(service: Service, _: Path) -> AsyncIterator[None]:
    """Kill a worker."""
    service.children[0].kill()
    yield


@contextlib.asynccontextmanager
async def worker_stopped(service: Service, _: Path) -> AsyncIterator[None]:
    """Pause a worker, and each worker that is started in its place."""

    async def stop() -> None:
        while True:
            workers = service.children
            if len(workers) == 2 and workers[0].status() != psutil.STATUS_STOPPED:
                os.kill(workers[0].pid, signal.SIGSTOP)
            await asyncio.sleep(0.5)

    async with meanwhile(stop()):
        yield
    for worker in service.children:
        os.kill(worker.pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def killed(service: Service, _: Path) -> AsyncIterator[None]:
    """Kill the whole service, and start it again after the block."""
    service.kill()
    yield
    service.start_again()
    await asyncio.to_thread(service.wait_until_ready)


@contextlib.asynccontextmanager
async def killed_again(service: Service, _: Path) -> AsyncIterator[None]:
    """Kill and start the whole service again, twice."""
    for _time in range(2):
        service.start_again()
        await asyncio.to_thread(service.wait_until_ready)
        await asyncio.sleep(SCRAPE_SECONDS)
    yield


def full_of_connections(most: int, share: float) -> Incident:
    """Return the incident of idle connections that take a share of `most` file descriptors."""

    @contextlib.asynccontextmanager
    async def incident(service: Service, _: Path) -> AsyncIterator[None]:
        server = psutil.Process(service.process.pid)
        before = server.rlimit(resource.RLIMIT_NOFILE)
        server.rlimit(resource.RLIMIT_NOFILE, (most, before[1]))
        async with contextlib.AsyncExitStack() as stack:
            for _connection in range(int(share * most) - server.num_fds()):
                stack.enter_context(stall(service.port, b""))
            yield
        server.rlimit(resource.RLIMIT_NOFILE, before)

    return incident


def unread(count: int) -> Incident:
    """Return the incident of `count` clients that request large replies and do not read them."""

    @contextlib.asynccontextmanager
    async def incident(service: Service, _: Path) -> AsyncIterator[None]:
        with contextlib.ExitStack() as stack:
            for _client in range(count):
                stack.enter_context(stall(service.port, request("/attention", REPLY, BINARY)))
            yield

    return incident


def impatient(service: Service, _: Path) -> contextlib.AbstractAsyncContextManager[None]:
    """Run clients that disconnect 50 ms after each request."""

    async def leaving() -> None:
        while True:
            with stall(service.port, request("/encode", SHORT)):
                await asyncio.sleep(0.05)

    return meanwhile(*(leaving() for _ in range(4)))


@contextlib.asynccontextmanager
async def replica_hangs_up(service: Service, _: Path) -> AsyncIterator[None]:
    """Add a replica that reports ready, and closes every connection that sends a request."""
    assert isinstance(service, Balancer)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /health/ready"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, BROKEN_REPLICA, service.replica_port):
        service.names.addresses.append(BROKEN_REPLICA)
        yield
        service.names.addresses.remove(BROKEN_REPLICA)


@contextlib.asynccontextmanager
async def no_replica(service: Service, _: Path) -> AsyncIterator[None]:
    """Remove the only address from the replicas' name."""
    assert isinstance(service, Balancer)
    service.names.addresses.remove(REPLICA)
    yield
    service.names.addresses.append(REPLICA)
