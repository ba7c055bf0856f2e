"""Readiness of the engine, by its last batch or by a probe."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from model.artifact.manifest import Artifact
from service.engines.contract import Output, Task
from service.engines.fake import FakeEngine
from service.models.state import state_of
from service.scheduler.scheduler import Scheduler
from tests.service.harness import (
    CONFIG,
    AnsweringEngine,
    GatedEngine,
    assert_problem,
    serving,
    until,
)
from tests.service.scraped import samples
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio
READY = ["/health/ready", "/health"]
QUEUE = (("lane", "encode"), ("model", "small"))


@pytest.mark.parametrize("route", READY)
async def test_ready_once_the_engine_has_answered(artifact: Artifact, route: str) -> None:
    engine = GatedEngine()
    async with serving(artifact, engine) as client:
        engine.let_through()
        for _ in range(3):
            response = await client.get(route)
            assert (response.status_code, response.json()) == (200, {"status": "ready"})
        assert engine.batches == [[1]]  # a fresh success needs no new probe


@pytest.mark.parametrize("route", READY)
async def test_not_ready_while_the_engine_hangs(
    artifact: Artifact, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.health.engine.PROBE_SECONDS", 0.05)
    engine = GatedEngine()
    async with serving(artifact, engine) as client:
        for _ in range(3):
            response = await client.get(route)
            assert_problem(response, 503, says="did not answer a probe", error_type="Unhealthy")
            assert (await client.get("/health/live")).json() == {"status": "live"}
        assert (await samples(client))["headscope_queue_tokens", QUEUE] == 0
        engine.let_through()
        monkeypatch.undo()  # however long a busy machine takes
        assert (await client.get(route)).status_code == 200


async def test_not_ready_while_the_queue_of_a_hung_engine_is_full(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.health.engine.PROBE_SECONDS", 0.05)
    engine = GatedEngine()
    async with serving(artifact, engine, max_queue_tokens=12) as client:
        waiting = []
        for inputs in ("a", "a b c d"):
            waiting.append(asyncio.create_task(client.post("/encode", json={"inputs": inputs})))
            await until(lambda: engine.batches)
        while (await samples(client))[
            "headscope_queue_tokens", (("lane", "encode"), ("model", "small"))
        ] < 6:
            await asyncio.sleep(0.001)
        overloaded = await client.post("/encode", json={"inputs": "a b c"})
        assert_problem(overloaded, 429, says="holds 6 of 12 tokens", error_type="Overloaded")
        assert overloaded.json()["retryable"] is True
        assert_problem(await client.get("/health/ready"), 503, error_type="Unhealthy")
        engine.let_through()
        assert [(await one).status_code for one in waiting] == [200, 200]


async def test_not_ready_while_the_engine_is_dead(artifact: Artifact) -> None:
    class Dead(FakeEngine):
        alive = False

    async with serving(artifact, Dead(CONFIG)) as client:
        for path in READY:
            assert_problem(await client.get(path), 503, error_type="Unhealthy")
        response = await client.post("/encode", json={"inputs": "a"})
        assert_problem(response, 503, says="fake engine is down", error_type="Unhealthy")
        assert (await client.get("/health/live")).status_code == 200


async def test_not_ready_while_the_engine_fails(artifact: Artifact) -> None:
    def fail(_: Sequence[Task]) -> list[Output]:
        raise ValueError("c4n4ry")

    engine = AnsweringEngine(fail)
    async with serving(artifact, engine) as client:
        for path in READY:
            response = await client.get(path)
            assert_problem(response, 503, says="raised ValueError", error_type="Unhealthy")
            assert "c4n4ry" not in response.text
        response = await client.post("/encode", json={"inputs": "a"})
        assert_problem(response, 500, says="raised ValueError", error_type="Backend")
        engine.answer = lambda _: None
        assert (await client.get("/health/ready")).status_code == 200


async def test_of_several_models_every_one_that_is_not_ready_is_named(artifact: Artifact) -> None:
    class Mortal(FakeEngine):
        dead = False

        @property
        def alive(self) -> bool:
            return not self.dead

    engines = [Mortal(CONFIG) for _ in "abc"]
    async with serving([variant(artifact, name, 8) for name in "abc"], engines) as client:
        assert (await client.get("/health/ready")).json() == {"status": "ready"}
        for engine in engines[1:]:
            engine.dead = True
        problem = assert_problem(await client.get("/health/ready"), 503, error_type="Unhealthy")
        assert problem["detail"] == "b: the fake engine is down; c: the fake engine is down"
        for name, status in {"a": 200, "b": 503, "c": 503}.items():
            answer = await client.post("/encode", json={"inputs": "a", "model": name})
            assert answer.status_code == status, name
        assert (await client.get("/info?model=a")).json()["status"] == "working"
        state_of(client.app).models.default.health.fallback_failure = "no stand-in"
        assert (await client.get("/health/ready")).json()["detail"].startswith("a: no stand-in; b")


async def test_of_several_models_those_with_a_stand_in_are_named(artifact: Artifact) -> None:
    artifacts = [variant(artifact, name, 8) for name in "ab"]
    async with serving(artifacts, [fake_of(one) for one in artifacts]) as client:
        second = state_of(client.app).models.named("b").inference.engines
        fake = Scheduler(fake_of(artifacts[1]), second.limits, second.observer)
        second._schedulers["torch"] = fake
        await second.retire("its device is lost", "torch")
        ready = (await client.get("/health/ready")).json()
        assert ready == {
            "status": "degraded",
            "backend": "torch",
            "detail": "b: its device is lost",
        }
        info = (await client.get("/info")).json()
        assert [one["status"] for one in info["models"]] == ["working", "degraded"]
