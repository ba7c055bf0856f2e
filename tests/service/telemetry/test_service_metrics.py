"""Gauges of the service: identity, readiness and limits."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.models.state import state_of
from service.system import machine
from tests.service.harness import CONFIG, GatedEngine, serving
from tests.service.scraped import samples

pytestmark = pytest.mark.anyio


async def test_build_and_limits(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: 12345)
    chosen: dict[str, Any] = {
        "max_body_bytes_in_flight": 1001,
        "max_bytes_in_flight": 100_002,
        "request_timeout_seconds": 3.5,
        "queue_timeout_seconds": 2.5,
        "queue_target_seconds": 0.25,
    }
    async with serving(artifact, FakeEngine(CONFIG), **chosen) as client:
        found = await samples(client)
    build = (("python", platform.python_version()), ("version", version("headscope-server")))
    assert found["headscope_build_info", build] == 1
    names = ("body_bytes_in_flight_limit", "reply_bytes_in_flight_limit", "request_seconds_limit",
             "queue_seconds_limit", "queue_seconds_target")  # fmt: skip
    assert [found[f"headscope_{name}", ()] for name in names] == list(chosen.values())
    assert found["headscope_memory_available_bytes", ()] == 12345
    assert found["headscope_workers", ()] == 1
    assert found["headscope_requests_in_flight", ()] == 1, "the scrape itself"


async def test_ready_as_the_last_probe_found(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scrape starts no probe: it computes nothing."""
    monkeypatch.setattr("service.health.readiness.PROBE_SECONDS", 0.05)
    engine = GatedEngine()
    async with serving(artifact, engine) as client:

        async def ready() -> float:
            return (await samples(client))["headscope_ready", ()]

        assert await ready() == 1
        assert engine.batches == []
        assert (await client.get("/health/ready")).status_code == 503
        assert await ready() == 0
        engine.let_through()
        monkeypatch.undo()  # however long a busy machine takes
        assert (await client.get("/health/ready")).status_code == 200
        assert await ready() == 1
        state_of(client.app).readiness.draining = True
        assert await ready() == 0
