"""Deadline of a request, by its header or by the settings."""

from __future__ import annotations

import asyncio
import time

import pytest

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from tests.service.harness import (
    GatedEngine,
    assert_problem,
    serving,
    until,
)
from tests.service.scheduler.clock import FakeClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Freeze the clock of all code that checks a request's deadline."""
    clock = FakeClock(monkeypatch)
    monkeypatch.setattr("service.inference.tokenization.request_tokenizer.time", clock)
    clock.now = time.monotonic()
    return clock


@pytest.mark.parametrize("asked", ["", "-1", "1.5", "soon", "٣", "1" * 10])
async def test_a_timeout_that_is_no_number_is_refused(artifact: Artifact, asked: str) -> None:
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        headers = [(b"x-request-timeout-ms", asked.encode())]
        response = await client.post("/encode", json={"inputs": "a"}, headers=headers)
        assert_problem(response, 422, says="whole number of milliseconds")


@pytest.mark.parametrize("route", ["/encode", "/attention"])
@pytest.mark.parametrize(
    ("headers", "settings"),
    [({"x-request-timeout-ms": "50"}, {}), ({}, {"request_timeout_seconds": 0.05})],
    ids=["header", "setting"],
)
async def test_a_hanging_engine_is_a_504_at_the_deadline(
    artifact: Artifact,
    clock: FakeClock,
    route: str,
    headers: dict[str, str],
    settings: dict[str, float],
) -> None:
    engine = GatedEngine()
    async with serving(artifact, engine, **settings) as client:
        asked = asyncio.create_task(client.post(route, json={"inputs": "a"}, headers=headers))
        await until(lambda: engine.batches)
        clock.now += 60
        problem = assert_problem(await asked, 504, error_type="Backend")
        assert problem["retryable"]
        assert (await client.get("/health/live")).status_code == 200
        engine.let_through()


async def test_no_time_at_all_is_a_429_with_retry_after(artifact: Artifact) -> None:
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        headers = {"x-request-timeout-ms": "0"}
        response = await client.post("/encode", json={"inputs": "a"}, headers=headers)
        assert_problem(response, 429, error_type="Overloaded")
        metrics = (await client.get("/metrics")).text
        assert 'headscope_refused_total{reason="queue_deadline",route="/encode"} 1.0' in metrics
