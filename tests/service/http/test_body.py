"""Bodies: the bytes that they hold in memory, and refusals of large ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.app import create_app
from service.engines.fake import FakeEngine
from service.errors import BodyTooLarge
from service.http.exchange import Bodies
from service.models.state import state_of
from service.settings import Settings
from service.system.budget import ByteBudget
from tests.service.harness import CONFIG, Client, GatedEngine, assert_problem, exchange, until

pytestmark = pytest.mark.anyio
HEADERS = {"content-type": "application/json"}


def held(app: Any) -> int:
    return state_of(app).bodies.held


@pytest.fixture
async def client(artifact: Artifact) -> AsyncIterator[Client]:
    """Yield a client with 100 bytes of bodies at once, of a service with a gated engine."""
    engine = GatedEngine()
    settings = Settings(max_body_bytes=1000, max_body_bytes_in_flight=100)
    app = create_app(settings, [artifact], [engine])
    async with app.router.lifespan_context(app), Client(app) as client:
        client.engine = engine  # type: ignore[attr-defined]
        yield client
        engine.let_through()


def body(size: int) -> bytes:
    text = b'{"inputs": "a"'
    return text + b" " * (size - len(text) - 1) + b"}"


async def in_parts(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_a_body_counts_until_its_request_is_answered(client: Client) -> None:
    engine: GatedEngine = client.engine  # type: ignore[attr-defined]
    first = asyncio.create_task(client.post("/encode", content=body(60), headers=HEADERS))
    await until(lambda: engine.batches)
    assert held(client.app) == 60
    for content in (body(41), in_parts(body(60)[:30], body(60)[30:])):
        refused = await client.post("/encode", content=content, headers=HEADERS)
        assert_problem(refused, 429, "of 100 bytes", "Overloaded")
        assert held(client.app) == 60
    second = asyncio.create_task(client.post("/encode", content=body(40), headers=HEADERS))
    await until(lambda: held(client.app) == 100)
    engine.let_through()
    assert [reply.status_code for reply in await asyncio.gather(first, second)] == [200, 200]
    assert held(client.app) == 0


async def test_one_alone_always_may(client: Client) -> None:
    client.engine.let_through()  # type: ignore[attr-defined]
    for content in (body(1000), in_parts(body(1000)[:90], body(1000)[90:500], body(1000)[500:])):
        reply = await client.post("/encode", content=content, headers=HEADERS)
        assert reply.status_code == 200
    assert held(client.app) == 0


async def test_what_is_refused_early_ends_the_connection(client: Client) -> None:
    refused = await client.post("/encode", content=body(1001), headers=HEADERS)
    assert refused.headers["connection"] == "close"
    wrong = await client.post("/encode", content=b"[", headers=HEADERS)
    assert wrong.status_code == 400
    assert "connection" not in wrong.headers


async def test_a_body_that_does_not_come_is_not_waited_for(artifact: Artifact) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    settings = Settings(client_timeout_seconds=0.05)
    app = create_app(settings, [artifact], [FakeEngine(CONFIG)])
    async with app.router.lifespan_context(app), Client(app) as client:
        late = await client.post("/encode", content=slow(), headers=HEADERS)
        problem = assert_problem(late, 408, "within 0.05 seconds")
        assert problem["type"] == "/problems/request-timeout"
        assert problem["retryable"]
        assert late.headers["connection"] == "close"
        assert held(app) == 0
        assert (await client.post("/encode", json={"inputs": "a"})).status_code == 200


def test_a_body_over_the_limit_takes_no_bytes() -> None:
    bodies, found = Bodies(50, 60, ByteBudget(100, "bodies")), exchange()
    bodies.take(found, 50)
    assert found.received_bytes == bodies.budget.held == 50
    with pytest.raises(BodyTooLarge):
        bodies.take(found, 1)
    assert found.received_bytes == bodies.budget.held == 50


async def test_a_body_that_came_with_its_head_is_not_waited_for(artifact: Artifact) -> None:
    sent: list[Any] = []

    async def unread() -> Any:
        raise AssertionError("the server has received the whole body")

    async def send(message: Any) -> None:
        sent.append(message)

    app = create_app(Settings(), [artifact], [FakeEngine(CONFIG)])
    scope = exchange(path="/encode", headers=[(b"content-type", b"application/json")]).scope
    scope |= {"method": "POST", "whole_body": body(20), "on_disconnect": None}
    async with app.router.lifespan_context(app):
        await app(scope, unread, send)
    assert sent[0]["status"] == 200
    assert "whole_body" not in scope, "so that its reader can free it"
