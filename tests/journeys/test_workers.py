"""Several workers on one port: spread, health, metrics, faults, and how they stop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import httpx
import numpy as np
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.journeys.conftest import free_port, wait_until_ready
from tests.journeys.load import Connection, Load

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Service:
    process: subprocess.Popen[str]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def connections_by_worker(self) -> list[int]:
        """How many clients each worker has."""
        counts = []
        for worker in self.workers:
            found = [c for c in worker.net_connections("tcp") if c.laddr.port == self.port]
            counts.append(sum(c.status == psutil.CONN_ESTABLISHED for c in found))
        return counts


@contextlib.contextmanager
def serving(*flags: str, workers: int = 2, ready: bool = True) -> Iterator[Service]:
    port = free_port()
    command = [sys.executable, "-m", "service", "serve", "--port", str(port)]
    command += ["--workers", str(workers), "--log-level", "warning", *flags]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADSCOPE_")}
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            command,
            env={**environment, "TMPDIR": folder},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        service = Service(process, port)
        try:
            if ready:
                wait_until_ready(service.url, process)
            yield service
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Two workers with the fake engine, for tests that leave them as they were."""
    with serving("--engine", "fake") as service:
        yield service
        assert service.stop() == 0
        assert service.process.stderr is not None
        assert service.process.stderr.read() == ""


def samples(text: str) -> dict[str, float]:
    return {
        f"{sample.name} {sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scrape(port: int) -> dict[str, float]:
    async with Connection(port) as connection:
        return samples((await connection.ask("/metrics")).body.decode())


def total(found: dict[str, float], prefix: str) -> float:
    return sum(value for name, value in found.items() if name.startswith(prefix))


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def connected(port: int, count: int) -> AsyncIterator[list[Connection]]:
    """Open connections, each of which has been answered once."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Connection(port)) for _ in range(count)]


@pytest.mark.parametrize("count", [2, 3, 8, 33])
async def test_connections_are_spread_evenly(service: Service, count: int) -> None:
    await until(lambda: service.connections_by_worker() == [0, 0])
    async with connected(service.port, count) as connections:
        for connection in connections:
            assert (await connection.ask("/health/live")).status == 200
        assert sorted(service.connections_by_worker()) == [count // 2, (count + 1) // 2]


async def test_a_burst_is_spread_evenly(service: Service) -> None:
    await until(lambda: service.connections_by_worker() == [0, 0])
    async with contextlib.AsyncExitStack() as stack:
        opening = (stack.enter_async_context(Connection(service.port)) for _ in range(64))
        connections = await asyncio.gather(*opening)
        replies = await asyncio.gather(*(c.ask("/health/live") for c in connections))
        assert {reply.status for reply in replies} == {200}
        assert service.connections_by_worker() == [32, 32]


async def test_a_new_connection_goes_to_the_worker_with_the_fewest(service: Service) -> None:
    await until(lambda: service.connections_by_worker() == [0, 0])
    async with connected(service.port, 8) as connections:
        for connection in connections:
            await connection.ask("/health/live")
        ports = {
            c.raddr.port
            for c in service.workers[0].net_connections("tcp")
            if c.status == psutil.CONN_ESTABLISHED and c.laddr.port == service.port
        }
        for connection in connections:
            if connection.local_port in ports:
                await connection.__aexit__()
        await until(lambda: service.connections_by_worker() == [0, 4])
        async with connected(service.port, 4) as more:
            for connection in more:
                await connection.ask("/health/live")
            assert service.connections_by_worker() == [4, 4]


async def test_more_connections_than_a_channel_holds(service: Service) -> None:
    """The workers stand still meanwhile: what they cannot take yet waits, and is not lost."""
    await until(lambda: service.connections_by_worker() == [0, 0])
    for worker in service.workers:
        worker.suspend()
    async with connected(service.port, 1000) as connections:
        for connection in connections:
            connection.send("/health/live")
        await asyncio.sleep(0.3)
        for worker in service.workers:
            worker.resume()
        replies = await asyncio.gather(*(connection.read() for connection in connections))
        assert {reply.status for reply in replies} == {200}
        assert sum(service.connections_by_worker()) == 1000


async def test_replies_are_right_and_counted(service: Service) -> None:
    load = Load(service.port)
    await load.learn()
    before = await scrape(service.port)
    async with load.running(16):
        await asyncio.sleep(1)
    assert load.outcomes.keys() == {"right"}
    after = await scrape(service.port)
    for name in (
        "headscope_requests_total [('route', '/encode')",
        "headscope_request_seconds_count [('route', '/encode')",
        "headscope_queue_seconds_count [('lane', 'encode')",
    ):
        assert total(after, name) - total(before, name) == load.outcomes["right"], name


async def test_each_worker_tells_of_all(service: Service) -> None:
    async with connected(service.port, 2) as connections:
        told = [
            samples((await connection.ask("/metrics")).body.decode()) for connection in connections
        ]
        infos = [json.loads((await c.ask("/info")).body) for c in connections]
        ready = [(await c.ask("/health/ready")).status for c in connections]
    assert {info["workers"] for info in infos} == {2}
    assert ready == [200, 200]
    for found in told:
        assert found["headscope_workers []"] == 2
        assert total(found, "headscope_engine_info") == 1
    constant = [
        {name: value for name, value in found.items() if "/encode" in name} for found in told
    ]
    assert constant[0] == constant[1]


async def test_the_memory_of_all_processes(service: Service) -> None:
    """psutil reads the same shares from another file of the kernel's."""
    members = [psutil.Process(service.process.pid), *service.workers]
    found = await scrape(service.port)
    resident = sum(process.memory_full_info().pss for process in members)
    assert found["process_resident_memory_bytes []"] == pytest.approx(resident, rel=0.05)
    assert resident < 0.95 * sum(process.memory_info().rss for process in members)
    virtual = sum(process.memory_info().vms for process in members)
    assert found["process_virtual_memory_bytes []"] == pytest.approx(virtual, rel=0.05)
    files = sum(process.num_fds() for process in members)
    assert found["process_open_fds []"] == pytest.approx(files, abs=6)
    started = min(process.create_time() for process in members)
    assert found["process_start_time_seconds []"] == pytest.approx(started, abs=1.5)
    spent = sum(sum(process.cpu_times()[:2]) for process in members)
    assert found["process_cpu_seconds_total []"] == pytest.approx(spent, abs=0.5)


async def test_not_ready_while_a_worker_hangs(service: Service) -> None:
    async with connected(service.port, 2) as connections:
        for connection in connections:
            await connection.ask("/health/live")
        hanging, *_ = service.workers
        hanging.suspend()
        try:
            asked = [asyncio.create_task(c.ask("/health/ready")) for c in connections]
            done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            (reply,) = (task.result() for task in done)
            assert reply.status == 503
            assert json.loads(reply.body)["detail"] == "worker 0: it does not answer"
            (still,) = [c for c, task in zip(connections, asked, strict=True) if task in done]
            assert (await still.ask("/health/live")).status == 200
            assert total(samples((await still.ask("/metrics")).body.decode()), "headscope_w") == 2
        finally:
            hanging.resume()
        assert [(await task).status for task in waiting] == [200]
        for connection in connections:
            assert (await connection.ask("/health/ready")).status == 200


async def test_a_worker_leaves_signals_to_its_supervisor(service: Service) -> None:
    before = service.workers
    for worker in before:
        worker.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGINT)
    await asyncio.sleep(1.5)
    assert service.workers == before
    async with Connection(service.port) as connection:
        reply = await connection.ask("/health/ready")
    assert (reply.status, reply.closes) == (200, False)


async def test_a_killed_worker_takes_only_its_own_with_it() -> None:
    with serving("--engine", "fake") as service:
        load = Load(service.port)
        await load.learn()
        async with load.running(20):
            seen = [await scrape(service.port)]
            await until(lambda: sum(service.connections_by_worker()) == 20)
            busy = max(service.connections_by_worker())
            assert busy == 10
            service.workers[0].kill()
            killed = time.monotonic()
            while seen[-1]["headscope_worker_restarts_total []"] < 1 or len(service.workers) < 2:
                seen.append(await scrape(service.port))
                assert time.monotonic() - killed < 20
                await asyncio.sleep(0.05)
            assert min(found["headscope_workers []"] for found in seen) == 1
            seen += [await scrape(service.port) for _ in range(20)]
            assert seen[-1]["headscope_workers []"] == 2
        seen.append(await scrape(service.port))

        assert load.outcomes["right"] > 100
        assert load.outcomes["lost"] <= busy + 1
        assert load.outcomes.keys() <= {"right", "lost"}
        for before, after in itertools.pairwise(seen):
            for name in before:
                if name.partition(" ")[0].endswith(("_total", "_count", "_sum", "_bucket")):
                    assert after[name] >= before[name], name
        answered = seen[-1]["headscope_requests_total [('route', '/encode'), ('status', '200')]"]
        right = load.outcomes["right"] + len(load.expected)
        assert right - load.outcomes["lost"] <= answered <= right + load.outcomes["lost"]
        async with connected(service.port, 4) as connections:
            for connection in connections:
                assert (await connection.ask("/health/ready")).status == 200
        assert service.stop() == 0


@pytest.mark.parametrize(
    ("workers", "number", "exit_code"),
    [
        (2, signal.SIGTERM, 0),
        (3, signal.SIGTERM, 0),
        (2, signal.SIGINT, 0),
        (1, signal.SIGTERM, -signal.SIGTERM),
    ],
)
async def test_a_stop_under_load_loses_nothing(
    workers: int, number: signal.Signals, exit_code: int
) -> None:
    with serving("--engine", "fake", workers=workers) as service:
        load = Load(service.port)
        await load.learn()
        async with load.running(50), Connection(service.port) as slow:
            await until(lambda: load.outcomes["right"] >= 200)
            slow.send("/encode", {"inputs": ["the animal " * 100] * 64})
            await asyncio.sleep(0.5)
            signalled = time.monotonic()
            os.killpg(service.process.pid, number)  # as a terminal does, or systemd
            await asyncio.sleep(0.3)
            async with Connection(service.port) as probe:
                reply = await probe.ask("/health/ready")
                assert (reply.status, reply.closes) == (503, True)
                assert json.loads(reply.body)["detail"] == "the service is stopping"
            await until(lambda: load.outcomes["refused"] >= 50)
            await asyncio.sleep(2)
            assert service.process.poll() is None
            reply = await slow.read()
            assert reply.status == 200
            assert len(json.loads(reply.body)["results"]) == 64
        assert load.outcomes.keys() == {"right", "refused"}
        code = await asyncio.to_thread(service.process.wait, 20)
        assert code == exit_code
        assert time.monotonic() - signalled < 20


async def test_a_client_that_never_reads_cannot_keep_the_service_alive() -> None:
    with serving("--engine", "fake", "--drain-seconds", "1") as service:
        async with Connection(service.port) as slow:
            slow.send("/encode", {"inputs": ["the animal " * 100] * 64})
            await asyncio.sleep(2)
            signalled = time.monotonic()
            await asyncio.to_thread(service.stop)
            assert time.monotonic() - signalled < 15


async def test_workers_end_with_their_supervisor() -> None:
    with serving("--engine", "fake") as service:
        workers = service.workers
        async with Connection(service.port) as connection:
            await connection.ask("/health/live")
            service.process.kill()
            with pytest.raises((OSError, asyncio.IncompleteReadError)):  # noqa: PT012
                while True:
                    await connection.ask("/health/live")
        _, alive = await asyncio.to_thread(psutil.wait_procs, workers, 20)
        assert alive == []


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--max-length", "513"], "max_length 513 is more than the position table's 512"),
        (["--host", "no.such.host.invalid"], "known"),
    ],
)
async def test_workers_that_cannot_start_end_the_service_with_one_line(
    flags: list[str], says: str
) -> None:
    with serving("--engine", "fake", *flags, workers=3, ready=False) as service:
        _, err = await asyncio.to_thread(service.process.communicate, timeout=60)
        assert service.process.returncode == 1
        (line,) = err.splitlines()
        assert line.startswith("headscope serve: ")
        assert says.lower() in line.lower()


async def test_a_port_that_is_taken(service: Service) -> None:
    command = [sys.executable, "-m", "service", "serve", "--port", str(service.port)]
    command += ["--workers", "2", "--engine", "fake"]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("headscope serve: ")
    assert "in use" in line


async def test_real_vectors_from_every_worker(client: httpx.Client) -> None:
    """The same numbers as from a service of one process."""
    texts = ["The animal didn't cross the street", "because it was too tired", "a"]
    expected = client.post("/encode", json={"inputs": texts}).json()
    with serving() as service:
        async with connected(service.port, 2) as connections:
            for connection in connections:
                await connection.ask("/health/live")
            assert service.connections_by_worker() == [1, 1]
            for connection in connections:
                found = json.loads((await connection.ask("/encode", {"inputs": texts})).body)
                for one, other in zip(found["results"], expected["results"], strict=True):
                    np.testing.assert_allclose(one["pooled"], other["pooled"], atol=1e-6)
                    assert one["tokens"] == other["tokens"]
        assert Counter(worker.num_threads() > 1 for worker in service.workers) == {True: 2}
        assert service.stop() == 0
