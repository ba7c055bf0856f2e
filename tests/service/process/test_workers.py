"""The parts that a service of several workers is made of, and workers that cannot start."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from model.artifact.manifest import ENCODER_DATA, Artifact, load_artifact, write_manifest
from service.health.peers import SILENT, Peers
from service.process.channel import MESSAGE_BYTES, Assignment
from service.process.listener import Listener, bound
from service.settings import Settings
from service.telemetry.processes import ServiceProcesses, descendants
from testing.process import Service, clean_environment
from tests.service.harness import until

SHARING = """
import sys
from pathlib import Path
from service.telemetry.metrics import Metrics, share

folder, index, what = sys.argv[1:]
share(int(index))
metrics = Metrics(Path(folder))
metrics.tokens.labels("encode").inc(int(what))
metrics.queue_seconds.labels("encode").observe(0.003)
metrics.queue_tokens.labels("encode").set(int(what))
metrics.engine.labels("fake", "none", "fp32", "small").set(1)
print(metrics.render().decode())
"""


def shared_values(folder: Path, index: int, amount: int) -> dict[str, float]:
    """What a process with this index renders once it has counted."""
    done = subprocess.run(
        [sys.executable, "-c", SHARING, str(folder), str(index), str(amount)],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(done.stdout)
        for sample in family.samples
        if sample.labels.get("lane", "encode") == "encode"
    }


@pytest.mark.slow
def test_counts_outlive_their_process(tmp_path: Path) -> None:
    shared_values(tmp_path, 0, 100)
    found = shared_values(tmp_path, 1, 10)
    assert found["headscope_tokens_total"] == 110
    assert found["headscope_queue_seconds_count"] == 2
    assert found["headscope_queue_seconds_sum"] == pytest.approx(0.006)
    assert found["headscope_queue_tokens"] == 110
    assert found["headscope_workers"] == 2
    assert found["headscope_engine_info"] == 1
    files = sorted(tmp_path.iterdir())
    again = shared_values(tmp_path, 0, 1)
    assert again["headscope_tokens_total"] == 111
    assert again["headscope_queue_tokens"] == 11
    assert again["headscope_workers"] == 2
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.anyio
async def test_workers_ask_each_other(tmp_path: Path) -> None:
    workers = [Peers(tmp_path, index, 4) for index in range(4)]
    asked: list[int] = []
    late = asyncio.Event()

    def answers(index: int, answer: str) -> dict[str, object]:
        async def ready() -> str:
            asked.append(index)
            if index == 2:
                await late.wait()
            return answer

        return {"ready": ready}

    async with contextlib.AsyncExitStack() as stack:
        for index, answer in enumerate(["", "the engine failed", "never said"]):
            await stack.enter_async_context(
                workers[index].answering(answers(index, answer))  # type: ignore[arg-type]
            )
        assert await workers[0].ask("ready", 0.2) == {1: "the engine failed", 2: SILENT}
        assert sorted(asked) == [1, 2]
        assert await workers[3].ask("ready", 0.2) == {0: "", 1: "the engine failed", 2: SILENT}
        late.set()
        await asyncio.sleep(0.1)
    assert await workers[0].ask("ready", 0.2) == {}
    async with workers[1].answering(answers(1, "back")):  # type: ignore[arg-type]
        assert await workers[0].ask("ready", 0.2) == {1: "back"}


CHILD = "import subprocess, sys, time; x = bytearray(20_000_000)\n"
GRANDCHILD = "subprocess.run([sys.executable, '-c', 'sum(range(4_000_000))'], check=True)\n"


@contextlib.contextmanager
def child(code: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", f"{code}print(1, flush=True); time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def collected(root: int) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(ServiceProcesses(root))
    return {sample.name: sample.value for family in registry.collect() for sample in family.samples}


def test_the_processes_of_a_service() -> None:
    code = f"import threading, time\nwith subprocess.Popen([sys.executable, '-c', {CHILD!r}"
    code += " + 'time.sleep(60)']) as p:\n threading.Event().wait(0.5)\n "
    with child(CHILD + code) as process:
        members = [psutil.Process(process.pid)]
        members += members[0].children(recursive=True)
        assert len(members) == 2
        assert descendants(process.pid) == [members[1].pid]
        found = collected(process.pid)
        resident = sum(member.memory_full_info().pss for member in members)
        assert found["process_resident_memory_bytes"] == pytest.approx(resident, rel=0.1)
        assert found["process_resident_memory_bytes"] > 40_000_000
        virtual = sum(member.memory_info().vms for member in members)
        assert found["process_virtual_memory_bytes"] == pytest.approx(virtual, rel=0.1)
        assert found["process_open_fds"] == sum(member.num_fds() for member in members)
        limits = [member.rlimit(psutil.RLIMIT_NOFILE)[0] for member in members]
        assert found["process_max_fds"] == sum(limits)
        started = members[0].create_time()
        assert found["process_start_time_seconds"] == pytest.approx(started, abs=1.5)
        members[1].kill()


def test_processor_time_never_falls() -> None:
    with child(CHILD + GRANDCHILD) as process:
        mine = psutil.Process(process.pid).cpu_times()
        expected = mine.user + mine.system + mine.children_user + mine.children_system
        found = collected(process.pid)["process_cpu_seconds_total"]
        assert found == pytest.approx(expected, abs=0.05)
        seen = [collected(os.getpid())["process_cpu_seconds_total"]]
        process.send_signal(signal.SIGKILL)
        for _ in range(5):
            seen.append(collected(os.getpid())["process_cpu_seconds_total"])
            time.sleep(0.01)
        process.wait()
        seen.append(collected(os.getpid())["process_cpu_seconds_total"])
    assert seen == sorted(seen)
    assert seen[0] > found


@pytest.mark.anyio
async def test_a_door_holds_back_what_is_not_taken_in() -> None:
    given: list[socket.socket] = []
    takes = False

    def give(connection: socket.socket) -> bool:
        if takes:
            given.append(connection.dup())
        return takes

    with bound("127.0.0.1", 0) as (listener,):
        address = listener.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        door = Listener(listener, give)
        clients = [socket.create_connection(address) for _ in range(100)]
        await asyncio.sleep(0.1)
        assert given == []
        takes = True
        await until(lambda: len(given) == 100)
        late = [socket.create_connection(address) for _ in range(5)]
        door.close()
        assert len(given) == 105
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        for number, client in enumerate([*clients, *late]):
            client.sendall(b"%d" % number)
        assert [int(one.recv(9)) for one in given] == list(range(105))
        for one in (*given, *clients, *late):
            one.close()


def test_every_address_of_a_host_on_one_port() -> None:
    with bound("localhost", 0) as sockets:
        ports = {listener.getsockname()[1] for listener in sockets}
        assert len(ports) == 1
    with bound("127.0.0.1", 0) as (listener,):
        listener.listen()
        taken = listener.getsockname()[1]
        with pytest.raises(OSError, match="in use"), bound("127.0.0.1", taken):
            pass
    with pytest.raises(OSError, match="known"), bound("no.such.host.invalid", 0):
        pass
    gc.collect()


def test_an_assignment_arrives_as_it_was(artifact: Artifact, tmp_path: Path) -> None:
    settings = Settings(workers=3, threads=2, max_length=7, host="::1", cache_folder=tmp_path)
    assignment = Assignment(
        settings=settings,
        artifact=artifact.folder,
        artifact_sha256=artifact.sha256,
        folder=tmp_path,
        index=2,
        restarted=True,
    )
    message = assignment.model_dump_json().encode()
    assert len(message) < MESSAGE_BYTES
    assert Assignment.model_validate_json(message) == assignment


@contextlib.contextmanager
def serving(artifact: Path) -> Iterator[Service]:
    flags = ["--workers", "2", "--engine", "fake", "--log-level", "error"]
    environment = clean_environment(TMPDIR=str(artifact.parent))
    with Service.of_headscope(
        *flags, "--artifact", str(artifact), environment=environment
    ) as service:
        service.wait_until_ready()
        yield service


@pytest.mark.slow
def test_the_service_ends_when_no_worker_starts_any_more(
    artifact: Artifact, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(artifact.folder, tmp_path / "copy"))
    with serving(copy) as service:
        (copy / ENCODER_DATA).write_bytes(b"damaged")
        for worker in service.children:
            worker.kill()
        assert service.process.wait(120) == 1
        *lines, last = service.log.splitlines()
    assert last.startswith(f"headscope serve: no worker starts any more: {copy / ENCODER_DATA} has")
    restarts = [line for line in lines if "it is started again in" in line]
    assert len(restarts) == 2 + 4
    assert sum("ended by signal 9" in line for line in restarts) == 2


@pytest.mark.slow
def test_another_artifact_does_not_slip_in(artifact: Artifact, tmp_path: Path) -> None:
    """It is valid, but the other workers answer from the one before; they go on."""
    copy = Path(shutil.copytree(artifact.folder, tmp_path / "copy"))
    with serving(copy) as service:
        write_manifest(copy, artifact.manifest.model_copy(update={"model": "another"}))
        assert load_artifact(copy).sha256 != artifact.sha256
        service.children[0].kill()
        service.wait_until(
            lambda: f"{copy} is not the artifact that the service started with" in service.log
        )
        for _ in range(4):
            info = httpx.get(f"{service.url}/info").json()
            assert info["artifact_sha256"] == artifact.sha256
        assert service.ready()
        assert "headscope_workers 1.0" in httpx.get(f"{service.url}/metrics").text
        assert service.stop() == 0
