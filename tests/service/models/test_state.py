"""State of a service, shared by its routes and its server."""

from __future__ import annotations

import asyncio

import pytest

from model.artifact.manifest import Artifact
from service.http.connection import HttpProtocol
from service.models.state import ServiceState, state_of
from service.process.server import Server
from tests.service.harness import GatedEngine, serving, until

pytestmark = pytest.mark.anyio


async def test_an_application_has_one_state(artifact: Artifact) -> None:
    async with serving(artifact, GatedEngine(), max_length=9) as client:
        state = state_of(client.app)
        assert isinstance(state, ServiceState)
        assert state is state_of(client.app)
        assert state.models.default.artifact is artifact
        assert state.settings.max_length == 9
        assert not state.hangs
    assert not state.hangs


async def test_the_connections_of_each_server_are_counted(artifact: Artifact) -> None:
    async with serving(artifact, GatedEngine()) as client:
        state = state_of(client.app)
        servers = [Server(client.app, state.settings) for _ in range(2)]
        for server in servers:
            server.server_state.connections.add(HttpProtocol.__new__(HttpProtocol))
        await state.refresh_metrics()
        assert state.metrics.registry.get_sample_value("headscope_connections") == 2


async def test_the_queues_metric_is_as_old_as_its_refresh(artifact: Artifact) -> None:
    engine = GatedEngine()
    async with serving(artifact, engine) as client:
        state = state_of(client.app)

        def reported(lane: str) -> float:
            found = state.metrics.registry.get_sample_value(
                "headscope_queue_tokens", {"model": "small", "lane": lane}
            )
            assert found is not None
            return found

        first = asyncio.create_task(client.post("/encode", json={"inputs": "a"}))
        await until(lambda: engine.batches)
        second = asyncio.create_task(client.post("/encode", json={"inputs": "a b c d"}))
        lane = state.models.default.inference.engines.default.lanes["encode"]
        await until(lambda: lane.queued_tokens == 6)
        assert await state.refresh_metrics() == ""
        assert (reported("encode"), reported("attention")) == (6, 0)
        engine.let_through()
        await asyncio.gather(first, second)
        assert reported("encode") == 6
        await state.refresh_metrics()
        assert reported("encode") == 0
