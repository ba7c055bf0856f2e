"""The PyTorch engine and its process, which fails, hangs, ends, or is shared by models."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from model.artifact.manifest import WEIGHTS, Artifact
from model.export.serving import serving_copy
from model.runtimes.contract import Resources
from service.engines.onnx import OnnxEngine
from service.engines.process import (
    EngineProcess,
    Failure,
    Source,
    TorchEngine,
    TorchHosts,
    receive,
    send,
)
from service.errors import EngineNotInstalled, EngineTimeout, EngineUnavailable
from service.models.state import state_of
from service.scheduler.scheduler import Scheduler
from service.system import logs
from service.system.resources import torch_environment
from tests.service.harness import Client, assert_problem, pause, serving, text, until

pytestmark = pytest.mark.slow
HANG_SECONDS = 60


def gone(pid: int) -> bool:
    """Return whether a process has ended; it may be a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pid_of(engine: TorchEngine) -> int:
    assert engine.pid is not None
    return engine.pid


@pytest.fixture
def engine(artifact: Artifact) -> Iterator[TorchEngine]:
    engine = TorchEngine(artifact, timeout_seconds=30)
    yield engine
    engine.close()


def test_killed_while_it_computes(engine: TorchEngine) -> None:
    pause(pid_of(engine))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(engine.run, [text(5)])
        with pytest.raises(concurrent.futures.TimeoutError):
            answer.result(timeout=0.1)
        os.kill(pid_of(engine), signal.SIGKILL)
        with pytest.raises(EngineUnavailable, match="has ended"):
            answer.result(timeout=HANG_SECONDS)


def test_hung(engine: TorchEngine) -> None:
    engine._timeout_seconds, pid = 0.2, pid_of(engine)
    pause(pid)
    with pytest.raises(EngineTimeout, match=r"within 0\.2 s"):
        engine.run([text(5)])
    assert not engine.alive
    assert gone(pid)


@pytest.mark.parametrize(("own", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_its_threads_sleep_while_they_wait(
    monkeypatch: pytest.MonkeyPatch, own: str | None, expected: str
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY")
    if own is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", own)
    assert torch_environment()["OMP_WAIT_POLICY"] == expected


def test_torch_not_installed(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("subprocess.Popen", None)  # any call fails
    with pytest.raises(EngineNotInstalled, match="PyTorch is not installed"):
        TorchEngine(artifact, timeout_seconds=30)


def test_an_artifact_without_its_weights(artifact: Artifact, tmp_path: Path) -> None:
    serving = serving_copy(artifact, tmp_path / "serving")
    with pytest.raises(EngineNotInstalled, match=r"--serving-only, without .* PyTorch needs"):
        TorchEngine(serving, timeout_seconds=30)


BODY = {"inputs": ["a b", "c"], "backend": "torch", "outputs": ["pooled"]}


async def torch_scheduler(client: Client) -> Scheduler:
    engines = state_of(client.app).models.default.inference.engines
    return await engines.get("torch")


async def torch_engine(client: Client) -> TorchEngine:
    engine = (await torch_scheduler(client)).engine
    assert isinstance(engine, TorchEngine)
    return engine


@pytest.mark.anyio
async def test_over_http_a_dead_process_is_started_again(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    async with serving(artifact, onnx_engine, request_timeout_seconds=600) as client:
        first = await client.post("/encode", json=BODY)
        assert first.json()["backend"] == "torch"
        engine = await torch_engine(client)
        killed = pid_of(engine)
        os.kill(killed, signal.SIGKILL)
        await until(lambda: not engine.alive)
        for _ in range(2):
            with pytest.raises(EngineUnavailable, match="has ended"):
                engine.run([text(5)])
        second = await client.post("/encode", json=BODY)
        assert second.content == first.content, second.text
        replacement = pid_of(await torch_engine(client))
        assert replacement != killed

        pause(replacement)  # it takes the next request, and then dies
        asked = {"inputs": "a", "backend": "torch", "layers": [0]}
        waiting = asyncio.create_task(client.post("/attention", json=asked))
        scheduler = await torch_scheduler(client)
        await until(lambda: scheduler._running)
        assert not waiting.done()
        onnx = await client.post("/encode", json=BODY | {"backend": "onnx"})
        assert onnx.json()["backend"] == "onnx"
        os.kill(replacement, signal.SIGKILL)
        async with asyncio.timeout(HANG_SECONDS):
            response = await waiting
        assert_problem(response, 503, says="PyTorch process has ended", error_type="Unhealthy")
    assert gone(replacement)


@pytest.mark.anyio
async def test_over_http_torch_that_is_not_installed_is_never_replaced(
    artifact: Artifact, onnx_engine: OnnxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    async with serving(artifact, onnx_engine, request_timeout_seconds=600) as client:
        for route, body in [
            ("/encode", {"inputs": "a", "backend": "torch"}),
            ("/attention", {"inputs": "a", "backend": "torch"}),
            ("/verify", {"inputs": "a"}),
        ]:
            response = await client.post(route, json=body)
            assert_problem(response, 501, says="PyTorch is not installed", error_type="Backend")
        assert (await client.post("/encode", json={"inputs": "a"})).json()["backend"] == "onnx"


@pytest.fixture
def twins(artifact: Artifact, tmp_path: Path) -> tuple[Artifact, Artifact]:
    """Return two artifacts, the second a copy of the first."""
    folder = Path(shutil.copytree(artifact.folder, tmp_path / "copy"))
    return artifact, dataclasses.replace(artifact, folder=folder)


@contextlib.contextmanager
def both(twins: tuple[Artifact, Artifact], hosts: TorchHosts) -> Iterator[list[TorchEngine]]:
    engines = [TorchEngine(twin, 30, hosts) for twin in twins]
    yield engines
    for engine in engines:
        engine.close()


def test_models_share_a_process_that_ends_with_the_last(twins: tuple[Artifact, Artifact]) -> None:
    with both(twins, TorchHosts()) as (first, second):
        pid = first.pid
        assert pid is not None
        assert pid == second.pid
        found = [engine.run([text(5)])[0].pooled for engine in (first, second)]
        np.testing.assert_array_equal(*found)
        first.close()
        assert not first.alive
        assert second.alive
        assert len(second.run([text(5)])) == 1
    assert gone(pid)


def test_a_process_that_dies_is_replaced_for_all(twins: tuple[Artifact, Artifact]) -> None:
    hosts = TorchHosts()
    with both(twins, hosts) as (first, second):
        pid = first.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for engine in (first, second):
            with pytest.raises(EngineUnavailable, match="has ended"):
                engine.run([text(5)])
            assert not engine.alive
        with both(twins, hosts) as engines:
            assert len({engine.pid for engine in engines} - {pid}) == 1
            first.close()  # whose process is another
            assert all(engine.alive for engine in engines)


def test_a_process_that_ends_is_not_given_to_the_next_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which comes in the moment before the end."""
    hosts, found = TorchHosts(), list[EngineProcess]()
    monkeypatch.setattr(EngineProcess, "close", lambda _: found.append(hosts.acquire()))
    first = hosts.acquire()
    hosts.release(first)
    assert found[0] is not first
    assert hosts.acquire() is found[0]


def test_an_idle_process_ends_and_the_next_batch_starts_another(
    artifact: Artifact,
    onnx_engine: OnnxEngine,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The engine is alive throughout; a batch may also come while the process ends."""
    monkeypatch.setattr(logs, "_chosen", ("info", "text"))
    poll, late = subprocess.Popen.poll, list[None]()
    monkeypatch.setattr(subprocess.Popen, "poll", lambda own: late.pop() if late else poll(own))
    (expected,) = onnx_engine.run([text(5)])
    with contextlib.closing(TorchEngine(artifact, 30, TorchHosts(idle_seconds=0.3))) as engine:
        for unseen in ([], [None]):
            pid, deadline = pid_of(engine), time.monotonic() + HANG_SECONDS
            while not gone(pid):
                assert engine.alive
                assert time.monotonic() < deadline, "an idle process stays"
                time.sleep(0.02)
            late += unseen
            (found,) = engine.run([text(5)])
            np.testing.assert_allclose(found.pooled, expected.pooled, atol=1e-4)
            assert (engine.pid == pid, late) == (False, [])
    assert not engine.alive
    assert "PyTorch had no batch for 0.3 s: its process ends" in capfd.readouterr().err


def test_an_encoder_that_cannot_be_loaded(
    artifact: Artifact, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(artifact.folder, tmp_path / "damaged"))
    (folder / WEIGHTS).write_bytes(b"")
    with pytest.raises(EngineUnavailable, match="cannot load the model: ArtifactError"):
        TorchEngine(dataclasses.replace(artifact, folder=folder), timeout_seconds=30)
    assert "ArtifactError" in capfd.readouterr().err


def test_it_imports_nothing_of_the_current_folder_and_ends_when_closed(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("model/__init__.py", "service/__init__.py", "torch.py", "numpy.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_WAIT_POLICY")
    with contextlib.closing(TorchEngine(artifact, timeout_seconds=30)) as engine:
        assert len(engine.run([text(5)])) == 1
        pid = engine.pid
        assert pid is not None
        assert psutil.Process(pid).environ()["OMP_WAIT_POLICY"] == "PASSIVE"
        assert engine.alive
    assert gone(pid)
    assert not engine.alive


ORPHAN = """
import sys
from pathlib import Path
from model.artifact.manifest import load_artifact
from service.engines.process import TorchEngine

engine = TorchEngine(load_artifact(Path(sys.argv[1])), timeout_seconds=30)
print(engine.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_its_parent(artifact: Artifact) -> None:
    command = [sys.executable, "-c", ORPHAN, str(artifact.folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert not gone(worker)
        parent.kill()
    deadline = time.monotonic() + HANG_SECONDS
    while not gone(worker):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.02)


def test_the_pytorch_process_logs_as_told(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "service.engines.child"]
        command += [str(theirs.fileno()), "", "info", "json"]
        with subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True
        ) as process:
            theirs.close()
            send(ours, (Source(str(tmp_path), "torch", Resources()), "load", ()))
            assert receive(ours) == Failure("ArtifactError", "")
            ours.close()
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    (line,) = [json.loads(line) for line in errors.splitlines()]
    (error,) = line["exception"]
    assert error["type"] == "model.errors.ArtifactError"
    assert error["detail"].endswith("it holds no manifest.json")
    assert error["frames"][0].startswith("service/engines/child.py:")
