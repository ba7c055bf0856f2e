"""An engine that fails permanently: the service logs it, and exits or lets PyTorch serve."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from service.app import create_app
from service.engines.contract import Engine, Output, Task
from service.engines.onnx import OnnxEngine
from service.errors import EngineNotInstalled, EngineUnavailable
from service.models.state import state_of
from service.settings import Settings
from tests.service.harness import Client, StaysOpen, assert_problem, until
from tests.service.logged import Log
from tests.service.several import variant

pytestmark = pytest.mark.anyio
ASKED = {"inputs": "still here?", "outputs": ["pooled"]}


class Mortal(StaysOpen):
    """Engine on ONNX Runtime that can die, hang, or fail."""

    def __init__(self, engine: OnnxEngine) -> None:
        super().__init__(engine)
        self.concurrency = 2
        self.dead = self.broken = False
        self.gate = threading.Event()
        self.gate.set()

    @property
    def alive(self) -> bool:
        return not self.dead

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        assert self.gate.wait(60), "the test never let this batch through"
        if self.broken:
            raise RuntimeError("broken")
        return super().run(tasks)


class Service:
    """Application over a mortal engine, and its reasons to exit."""

    def __init__(self, artifact: Artifact, engine: Mortal, **settings: Any) -> None:
        self.engine = engine
        self.app = create_app(Settings(device="cpu", **settings), [artifact], [engine])
        self.given_up = state_of(self.app).failures

    @property
    def backends(self) -> Any:
        return state_of(self.app).models.default.inference.engines


@pytest.fixture
def mortal(onnx_engine: OnnxEngine) -> Mortal:
    return Mortal(onnx_engine)


async def embedding(client: Client, **asked: Any) -> tuple[str, Any]:
    response = await client.post("/encode", json=ASKED | asked)
    assert response.status_code == 200, response.text
    body = response.json()
    return body["backend"], np.array(body["results"][0]["pooled"])


def die(engine: Mortal) -> None:
    engine.dead = True


def hang(engine: Mortal) -> None:
    engine.gate.clear()


def fail(engine: Mortal) -> None:
    engine.broken = True


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (die, "the onnx engine is down"),
        (hang, "the onnx engine hangs: a batch takes more than 0.3 s"),
        (fail, "the onnx engine failed 3 batches in a row and a trial"),
    ],
)
async def test_by_default_the_process_ends(
    artifact: Artifact, mortal: Mortal, what: Callable[[Mortal], None], says: str
) -> None:
    limits = {"batch_timeout_seconds": 0.3} if what is hang else {}
    service = Service(artifact, mortal, **limits)
    async with service.app.router.lifespan_context(service.app), Client(service.app) as client:
        assert (await client.get("/health/ready")).json() == {"status": "ready"}
        what(mortal)
        for _ in range(3):
            reply = await client.post("/encode", json=ASKED)
            assert reply.status_code in (500, 503, 504)
            assert reply.headers["content-type"] == "application/problem+json"
        await until(lambda: service.given_up)
        assert service.given_up[0].startswith(says)
        assert_problem(await client.get("/health/ready"), 503, says=says, error_type="Unhealthy")
        assert_problem(
            await client.post("/encode", json=ASKED), 503, says=says, error_type="Unhealthy"
        )
        assert (await client.get("/health/live")).status_code == 200
        assert (await client.get("/info")).json()["status"] == "failed"
        assert 'headscope_degraded{model="small"} 0.0' in (await client.get("/metrics")).text
        mortal.gate.set()


async def test_what_hangs_is_answered_504(artifact: Artifact, mortal: Mortal) -> None:
    service = Service(artifact, mortal, batch_timeout_seconds=0.3)
    async with service.app.router.lifespan_context(service.app), Client(service.app) as client:
        hang(mortal)
        assert_problem(
            await client.post("/encode", json=ASKED), 504, says="0.3 s", error_type="Backend"
        )
        mortal.gate.set()


@pytest.mark.usefixtures("started_torch")
async def test_torch_takes_over_says_so_and_gives_back(
    artifact: Artifact, mortal: Mortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_start = threading.Event()

    def start(*arguments: Any) -> OnnxEngine:
        if not may_start.is_set():
            raise OSError("not yet")
        return mortal._engine

    monkeypatch.setattr("service.models.start.OnnxEngine", start)
    monkeypatch.setattr("service.health.engine.FIRST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr("service.health.engine.MOST_PAUSE_SECONDS", 0.1)
    service = Service(artifact, mortal, fallback="torch")
    async with service.app.router.lifespan_context(service.app), Client(service.app) as client:
        name, before = await embedding(client)
        assert name == "onnx"
        die(mortal)
        await until(lambda: service.backends.failure)

        name, by_torch = await embedding(client)
        assert name == "torch"
        np.testing.assert_allclose(by_torch, before, atol=1e-5)
        refused = await client.post("/encode", json=ASKED | {"backend": "onnx"})
        assert_problem(refused, 503, says="the onnx engine is down", error_type="Unhealthy")
        ready = (await client.get("/health/ready")).json()
        assert (ready["status"], ready["backend"]) == ("degraded", "torch")
        assert "the onnx engine is down" in ready["detail"]
        info = (await client.get("/info")).json()
        assert (info["status"], info["backend"]) == ("degraded", "torch")
        assert 'headscope_degraded{model="small"} 1.0' in (await client.get("/metrics")).text
        assert service.given_up == []

        may_start.set()
        await until(lambda: not service.backends.failure)
        name, after = await embedding(client)
        assert name == "onnx"
        np.testing.assert_array_equal(after, before)
        assert (await client.get("/health/ready")).json() == {"status": "ready"}
        found = (await client.get("/metrics")).text
        assert 'headscope_degraded{model="small"} 0.0' in found
        assert 'headscope_engine_restarts_total{model="small"} 1.0' in found
        assert (await embedding(client, backend="onnx"))[0] == "onnx"


async def test_a_stand_in_that_is_not_installed_is_refused_at_the_start(
    artifact: Artifact, mortal: Mortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.engines.process.importlib.util.find_spec", lambda _: None)
    with pytest.raises(EngineNotInstalled):
        Service(artifact, mortal, fallback="torch")
    Service(artifact, mortal)


async def test_one_call_hangs_while_another_only_fails(
    artifact: Artifact, onnx_engine: OnnxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.scheduler.scheduler.CLOSE_SECONDS", 0.3)
    hanging = threading.Event()

    class Both(Mortal):
        def run(self, tasks: Sequence[Task]) -> list[Output]:
            if not self.broken:
                return super().run(tasks)
            if not hanging.is_set():
                hanging.set()
                assert self.gate.wait(60)
            raise RuntimeError("broken")

    engine = Both(onnx_engine)
    service = Service(artifact, engine)
    async with service.app.router.lifespan_context(service.app), Client(service.app) as client:
        await embedding(client)
        engine.broken = True
        engine.gate.clear()
        hung = asyncio.create_task(client.post("/encode", json=ASKED))
        await until(hanging.is_set)
        for _ in range(3):
            assert (await client.post("/encode", json=ASKED)).status_code in (500, 503)
        await until(lambda: service.given_up)
        hung.cancel()
    assert state_of(service.app).hangs
    engine.gate.set()


async def test_failures_that_a_trial_does_not_confirm_change_nothing(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    class OddLengths(Mortal):
        def run(self, tasks: Sequence[Task]) -> list[Output]:
            if any(task.tokens == 77 for task in tasks):
                raise RuntimeError("odd")
            return super().run(tasks)

    service = Service(artifact, OddLengths(onnx_engine))
    async with service.app.router.lifespan_context(service.app), Client(service.app) as client:
        for _ in range(4):
            failed = await client.post("/encode", json={"inputs": "word " * 75})
            assert_problem(failed, 500, error_type="Backend")
        tried = service.backends.default
        await until(lambda: tried.failed_in_a_row == 4)
        await embedding(client)
        assert service.given_up == []
        assert (await client.get("/health/ready")).json() == {"status": "ready"}


async def test_readiness_knows_whether_pytorch_could_stand_in(
    artifact: Artifact, mortal: Mortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: Any) -> Engine:
        raise EngineUnavailable("somebody else's model.py was found first")

    monkeypatch.setattr("service.models.start.TorchEngine", start)
    service = Service(artifact, mortal, fallback="torch")
    health = state_of(service.app).models.default.health
    async with service.app.router.lifespan_context(service.app), Client(service.app) as client:
        await until(lambda: health.fallback_failure)
        problem = assert_problem(
            await client.get("/health/ready"), 503, says="cannot start", error_type="Unhealthy"
        )
        assert "somebody else's model.py" in problem["detail"]
        assert (await client.post("/encode", json=ASKED)).status_code == 200
    assert service.given_up == []


async def test_the_end_of_one_of_several_models_names_it(
    artifact: Artifact, mortal: Mortal, onnx_engine: OnnxEngine, log: Log
) -> None:
    artifacts = [variant(artifact, name, mortal.hidden_size) for name in "ab"]
    app = create_app(Settings(device="cpu"), artifacts, [StaysOpen(onnx_engine), mortal])
    given_up = state_of(app).failures
    async with app.router.lifespan_context(app):
        mortal.dead = True
        await until(lambda: given_up)
    assert given_up == ["b: the onnx engine is down"]
    assert "b: the onnx engine is down; the service ends" in log.text
