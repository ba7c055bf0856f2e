"""Several workers on one port: spread, health, metrics, faults, and how they stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from testing.client import Connection, Lost, Reply, ask, request
from testing.clients import Clients
from testing.metrics import samples, total
from testing.process import Service, clean_environment
from tests.service.harness import until

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]


TEXTS = ["a", "the animal", "didn't cross the street", "because it was too tired " * 5]
LIVE, READY, INFO = request("/health/live"), request("/health/ready"), request("/info")
METRICS = request("/metrics")
REQUESTS = [request("/encode", {"inputs": text}) for text in TEXTS]
FLAGS = ("--log-level", "warning", "--client-timeout-seconds", "60")
"""Flags of every service: a client that reads nothing for a while is not cut off."""
LONG_TEXTS = 16
LONG = request("/encode", {"inputs": ["the animal " * 100] * LONG_TEXTS})


class Workers(Service):
    """Service of several workers."""

    def connections(self) -> list[int]:
        """Return the number of clients of each worker."""
        counts = []
        for worker in self.children:
            found = [c for c in worker.net_connections("tcp") if c.laddr.port == self.port]
            counts.append(sum(c.status == psutil.CONN_ESTABLISHED for c in found))
        return counts


@contextlib.contextmanager
def serving(*flags: str, workers: int = 2, ready: bool = True) -> Iterator[Workers]:
    flags = ("--workers", str(workers), *FLAGS, *flags)
    with tempfile.TemporaryDirectory() as folder:
        environment = clean_environment(TMPDIR=folder)
        with Workers.of_headscope(*flags, environment=environment) as service:
            if ready:
                service.wait_until_ready()
            yield service


@contextlib.contextmanager
def hangups(handler: signal.Handlers) -> Iterator[None]:
    """Set the SIGHUP handler that child processes inherit; `nohup` sets `SIG_IGN`."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module", autouse=True)
def _hangups_mean_something() -> Iterator[None]:
    """Restore the default SIGHUP handler, in case the tests run under `nohup`."""
    with hangups(signal.SIG_DFL):
        yield


async def learned(port: int) -> Clients:
    """Return clients that know the service's reply to each text alone."""
    async with await Connection.to(port) as connection:
        expected = [(await connection.ask(content)).json() for content in REQUESTS]

    def judge(expected: object, reply: Reply) -> str:
        return "right" if reply.status == 200 and reply.json() == expected else "wrong"

    judges = (functools.partial(judge, one) for one in expected)
    return Clients(port, itertools.cycle(zip(REQUESTS, judges, strict=True)))


async def computed(service: Workers, slow: Connection) -> asyncio.Task[Reply]:
    """Request a reply too large for the buffers, and leave it unread once it is computed."""
    name = "headscope_batch_texts_sum [('lane', 'encode')"
    before = total(await scrape(service.port), name)
    slow.transport.pause_reading()
    asked = asyncio.create_task(slow.ask(LONG))
    async with asyncio.timeout(60):
        while total(await scrape(service.port), name) < before + LONG_TEXTS:
            await asyncio.sleep(0.02)
    return asked


@pytest.fixture(scope="module")
def service() -> Iterator[Workers]:
    """Run two workers with the fake engine, for tests that leave two workers serving."""
    with serving("--engine", "fake") as service:
        yield service
        assert service.stop() == 0
        said = service.log.splitlines()
        assert all("restarting it" in line for line in said)


def restarts(found: dict[str, float]) -> float:
    return found["headscope_worker_restarts_total []"]


async def scrape(port: int) -> dict[str, float]:
    return samples((await ask(port, "/metrics")).body.decode())


@contextlib.asynccontextmanager
async def connected(port: int, count: int) -> AsyncIterator[list[Connection]]:
    """Open connections, and receive one reply on each."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(await Connection.to(port)) for _ in range(count)]


@pytest.mark.parametrize("count", [2, 3, 8, 33])
async def test_connections_are_spread_evenly(service: Workers, count: int) -> None:
    await until(lambda: service.connections() == [0, 0])
    async with connected(service.port, count) as connections:
        for connection in connections:
            assert (await connection.ask(LIVE)).status == 200
        assert sorted(service.connections()) == [count // 2, (count + 1) // 2]


async def test_a_new_connection_goes_to_the_worker_with_the_fewest(service: Workers) -> None:
    await until(lambda: service.connections() == [0, 0])
    async with connected(service.port, 8) as connections:
        for connection in connections:
            await connection.ask(LIVE)
        ports = {
            c.raddr.port
            for c in service.children[0].net_connections("tcp")
            if c.status == psutil.CONN_ESTABLISHED and c.laddr.port == service.port
        }
        for connection in connections:
            if connection.local_port in ports:
                await connection.__aexit__()
        await until(lambda: service.connections() == [0, 4])
        async with connected(service.port, 4) as more:
            for connection in more:
                await connection.ask(LIVE)
            assert service.connections() == [4, 4]


async def test_replies_are_right_and_counted(service: Workers) -> None:
    load = await learned(service.port)
    before = await scrape(service.port)
    async with load.running(16):
        await load.until("right", 100)
    assert load.outcomes.keys() == {"right"}
    names = (
        "headscope_requests_total [('route', '/encode')",
        "headscope_request_seconds_count [('route', '/encode')",
        "headscope_queue_seconds_count [('lane', 'encode')",
    )
    counts = [0.0]
    async with asyncio.timeout(60):
        while min(counts) < load.outcomes["right"]:  # a reply is counted after it is sent
            after = await scrape(service.port)
            counts = [total(after, name) - total(before, name) for name in names]
    assert counts == [load.outcomes["right"]] * len(names)


async def test_each_worker_tells_of_all(service: Workers) -> None:
    async with connected(service.port, 2) as connections:
        reported = [
            samples((await connection.ask(METRICS)).body.decode()) for connection in connections
        ]
        infos = [(await c.ask(INFO)).json() for c in connections]
        ready = [(await c.ask(READY)).status for c in connections]
    assert {info["workers"] for info in infos} == {2}
    assert ready == [200, 200]
    for found in reported:
        assert found["headscope_workers []"] == 2
        assert total(found, "headscope_engine_info") == 1
    constant = [
        {name: value for name, value in found.items() if "/encode" in name} for found in reported
    ]
    assert constant[0] == constant[1]


async def test_the_memory_of_all_processes(service: Workers) -> None:
    """psutil reads the same shares from another file of the kernel's."""
    members = [psutil.Process(service.process.pid), *service.children]
    found = await scrape(service.port)
    resident = sum(process.memory_full_info().pss for process in members)
    assert found["process_resident_memory_bytes []"] == pytest.approx(resident, rel=0.05)
    assert resident < 0.95 * sum(process.memory_info().rss for process in members)
    virtual = sum(process.memory_info().vms for process in members)
    assert found["process_virtual_memory_bytes []"] == pytest.approx(virtual, rel=0.05)
    files = sum(process.num_fds() for process in members)
    assert found["process_open_fds []"] == pytest.approx(files, abs=6)
    limits = [process.rlimit(psutil.RLIMIT_NOFILE)[0] for process in members]
    assert found["process_max_fds []"] == sum(limits)
    started = min(process.create_time() for process in members)
    assert found["process_start_time_seconds []"] == pytest.approx(started, abs=1.5)
    spent = sum(sum(process.cpu_times()[:2]) for process in members)
    assert found["process_cpu_seconds_total []"] == pytest.approx(spent, abs=0.5)


async def test_not_ready_while_a_worker_hangs(service: Workers) -> None:
    async with connected(service.port, 2) as connections:
        for connection in connections:
            await connection.ask(LIVE)
        hanging, *_ = service.children
        hanging.suspend()
        try:
            asked = [asyncio.create_task(c.ask(READY)) for c in connections]
            done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            (reply,) = (task.result() for task in done)
            assert reply.status == 503
            assert reply.json()["detail"] == "worker 0: it does not answer"
            (still,) = [c for c, task in zip(connections, asked, strict=True) if task in done]
            assert (await still.ask(LIVE)).status == 200
            assert total(samples((await still.ask(METRICS)).body.decode()), "headscope_w") == 2
        finally:
            hanging.resume()
        assert [(await task).status for task in waiting] == [200]
        for connection in connections:
            assert (await connection.ask(READY)).status == 200


async def test_a_worker_leaves_signals_to_its_supervisor(service: Workers) -> None:
    before = service.children
    for worker in before:
        worker.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGINT)
        worker.send_signal(signal.SIGHUP)
    await asyncio.sleep(0.5)  # uvicorn checks every 0.1 s whether to stop
    assert service.children == before
    async with await Connection.to(service.port) as connection:
        reply = await connection.ask(READY)
    assert (reply.status, reply.closes) == (200, False)


async def test_a_killed_worker_takes_only_its_own_with_it(service: Workers) -> None:
    await until(lambda: service.connections() == [0, 0])
    seen = [await scrape(service.port)]
    load = await learned(service.port)
    async with load.running(20):
        await until(lambda: sum(service.connections()) == 20)
        busy = max(service.connections())
        assert busy == 10
        load.killed = time.monotonic()
        service.children[0].kill()
        load.pause_seconds = 0.02
        async with asyncio.timeout(60):
            while restarts(seen[-1]) == restarts(seen[0]) or len(service.children) < 2:
                with contextlib.suppress(Lost, OSError):  # the killed worker received it
                    seen.append(await scrape(service.port))
                await asyncio.sleep(0.05)
        assert min(found["headscope_workers []"] for found in seen) == 1
        lost = load.outcomes["lost"]
        seen += [await scrape(service.port) for _ in range(20)]
        assert seen[-1]["headscope_workers []"] == 2
        await load.until("right", load.outcomes["right"] + 100)
    name = "headscope_requests_total [('route', '/encode'), ('status', '200')]"
    right, answered = load.outcomes["right"] + len(TEXTS), -math.inf
    async with asyncio.timeout(60):
        while answered < right - load.outcomes["lost"]:  # a reply is counted after it is sent
            seen.append(await scrape(service.port))
            answered = seen[-1][name] - seen[0].get(name, 0)

    assert load.outcomes["lost"] == lost, "nothing more once another worker was started"
    assert lost - load.late <= busy, "who connected before can only have been in flight on it"
    assert load.outcomes.keys() <= {"right", "lost"}
    for before, after in itertools.pairwise(seen):
        for name in before:
            if name.partition(" ")[0].endswith(("_total", "_count", "_sum", "_bucket")):
                assert after[name] >= before[name], name
    assert answered <= right + load.outcomes["lost"]
    async with connected(service.port, 4) as connections:
        for connection in connections:
            assert (await connection.ask(READY)).status == 200


async def test_no_signal_ends_a_worker_that_has_just_begun() -> None:
    """A client that never reads cannot keep the service alive either."""
    with serving("--engine", "fake", "--drain-seconds", "1", ready=False) as service:
        await until(lambda: len(service.children) == 2)
        begun = service.children
        for worker in begun:
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                worker.send_signal(number)
        await asyncio.to_thread(service.wait_until_ready)
        assert service.children == begun
        assert service.log == ""
        async with await Connection.to(service.port) as slow:
            asked = await computed(service, slow)
            await asyncio.to_thread(service.stop)
            slow.transport.resume_reading()
            with pytest.raises(Lost):
                await asked


async def test_without_a_terminal() -> None:
    """SIGHUP is ignored, clients wait for descriptors, and SIGTERM loses no request."""
    with hangups(signal.SIG_IGN), serving("--engine", "fake", workers=1) as service:
        service.process.send_signal(signal.SIGHUP)
        await wait_without_descriptors(service)
        reply = await ask(service.port, "/health/ready")
        assert (reply.status, reply.closes) == (200, False)
        assert await stopped_under_load(service, signal.SIGTERM) == -signal.SIGTERM


async def wait_without_descriptors(service: Workers) -> None:
    """Connect clients while none can be accepted; the log says why, and replies come later."""
    process = psutil.Process(service.process.pid)
    before = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (3, before[1]))
    async with connected(service.port, 30) as connections:
        asked = [asyncio.create_task(connection.ask(LIVE)) for connection in connections]
        await until(lambda: "cannot accept connections" in service.log)
        process.rlimit(psutil.RLIMIT_NOFILE, before)
        replies = await asyncio.gather(*asked)
    assert {reply.status for reply in replies} == {200}
    (line,) = service.log.splitlines()
    assert line.endswith("new connections wait: Too many open files")


async def stopped_under_load(service: Workers, number: signal.Signals) -> int:
    """Stop a service under load, check that no client lost a request, and return the exit code."""
    load = await learned(service.port)
    async with await Connection.to(service.port) as slow:
        asked = await computed(service, slow)
        async with load.running(50):
            await load.until("right", 200)
            service.send(number)  # as a terminal or systemd does
            async with asyncio.timeout(60):
                reply = await ask(service.port, "/health/ready")
                while reply.status == 200:
                    reply = await ask(service.port, "/health/ready")
            assert (reply.status, reply.closes) == (503, True)
            assert reply.json()["detail"] == "the service is stopping"
            await load.until("refused", 50)
        await asyncio.sleep(1)
        assert service.process.poll() is None
        slow.transport.resume_reading()
        reply = await asked
        assert reply.status == 200
        assert len(reply.json()["results"]) == LONG_TEXTS
    assert load.outcomes.keys() == {"right", "refused"}
    return await asyncio.to_thread(service.process.wait, 20)


async def test_what_a_killed_service_leaves_the_next_one_removes(tmp_path: Path) -> None:
    """Its workers end with it; the next service is stopped by SIGHUP."""
    environment = clean_environment(TMPDIR=str(tmp_path))
    flags = ("--workers", "2", "--engine", "fake", *FLAGS)
    with Workers.of_headscope(*flags, environment=environment) as service:
        await asyncio.to_thread(service.wait_until_ready)
        workers = service.children
        async with await Connection.to(service.port) as connection:
            await connection.ask(LIVE)
            service.process.kill()
            with pytest.raises((OSError, Lost)):  # noqa: PT012
                while True:
                    await connection.ask(LIVE)
        _, alive = await asyncio.to_thread(psutil.wait_procs, workers, 60)
        assert alive == []
    (left,) = tmp_path.iterdir()
    with Workers.of_headscope(*flags, environment=environment) as service:
        await asyncio.to_thread(service.wait_until_ready)
        (kept,) = tmp_path.iterdir()
        assert kept != left
        assert await stopped_under_load(service, signal.SIGHUP) == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--max-length", "513"], "--max-length 513 is more than the position table's 512"),
        (["--host", "no.such.host.invalid"], "known"),
    ],
)
async def test_workers_that_cannot_start_end_the_service_with_one_line(
    flags: list[str], says: str
) -> None:
    with serving("--engine", "fake", *flags, ready=False) as service:
        assert await asyncio.to_thread(service.process.wait, 60) == 1
        line, *others = service.log.splitlines()
        assert not others, service.log
        assert line.startswith("headscope serve: ")
        assert says.lower() in line.lower()


async def test_a_connection_outlives_the_time_for_which_clients_keep_it(service: Workers) -> None:
    async with await Connection.to(service.port) as connection:
        assert (await connection.ask(LIVE)).status == 200
        await asyncio.sleep(6)  # httpx keeps one for 5 seconds
        assert (await connection.ask(LIVE)).status == 200
