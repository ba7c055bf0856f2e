"""The PyTorch engine, whose process fails, hangs or ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from model.export.serving import serving_copy
from service.engines.onnx import OnnxEngine
from service.engines.torch import TorchEngine
from service.errors import EngineNotInstalled, EngineTimeout, EngineUnavailable
from service.models.state import state_of
from service.scheduler.scheduler import Scheduler
from service.system.resources import torch_environment
from tests.service.engines.processes import gone
from tests.service.harness import Client, assert_problem, serving, text, until

pytestmark = pytest.mark.slow
HANG_SECONDS = 60


def pid_of(engine: TorchEngine) -> int:
    assert engine.pid is not None
    return engine.pid


@pytest.fixture
def engine(artifact: Artifact) -> Iterator[TorchEngine]:
    engine = TorchEngine(artifact, timeout_seconds=30)
    yield engine
    engine.close()


def test_killed_while_it_computes(engine: TorchEngine) -> None:
    os.kill(pid_of(engine), signal.SIGSTOP)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(engine.run, [text(5)])
        with pytest.raises(concurrent.futures.TimeoutError):
            answer.result(timeout=0.1)
        os.kill(pid_of(engine), signal.SIGKILL)
        with pytest.raises(EngineUnavailable, match="has ended"):
            answer.result(timeout=HANG_SECONDS)


def test_hung(engine: TorchEngine) -> None:
    engine._timeout_seconds, pid = 0.2, pid_of(engine)
    os.kill(pid, signal.SIGSTOP)
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

        os.kill(replacement, signal.SIGSTOP)  # it takes the next request, and then dies
        asked = {"inputs": "a", "backend": "torch", "layers": [0]}
        waiting = asyncio.create_task(client.post("/attention", json=asked))
        scheduler = await torch_scheduler(client)
        await until(lambda: scheduler._dispatcher._running)
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
