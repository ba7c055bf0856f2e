"""Observation of a request: its summary, without its content."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import Response

from model.artifact.manifest import Artifact
from service.app import create_app
from service.engines.fake import FakeEngine
from service.errors import ServiceError
from service.exchange import Exchange
from service.http.admission import Admission
from service.http.exchange import ExchangeMiddleware
from service.inference.timings import Timings
from service.settings import Settings
from tests.service.harness import CONFIG, Client, bare_service

pytestmark = pytest.mark.anyio
TIMINGS = Timings(3, 0.0, 0.0)


class Observer:
    """Observer that records the requests."""

    def __init__(self) -> None:
        self.heard: list[Exchange[Any, Any]] = []

    def observe(self, exchange: Exchange[Any, Any]) -> None:
        self.heard.append(exchange)

    def close(self) -> None:
        """Do nothing."""


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Send a reply in two parts, by a route that computes."""
    scope["route"] = SimpleNamespace(path="/things/{name}")
    scope["exchange"].timings = TIMINGS
    await asyncio.sleep(0.01)
    await send({"type": "http.response.start", "status": 207, "headers": []})
    await send({"type": "http.response.body", "body": b"123", "more_body": True})
    await asyncio.sleep(0.01)
    await send({"type": "http.response.body", "body": b"4567"})


def observing(app: Any, *observers: Observer) -> ExchangeMiddleware:
    return ExchangeMiddleware(
        app=app,
        routes={},
        service=bare_service(),
        admission=Admission(None, None),
        error_reply=lambda _, error: (
            Response(status_code=500) if isinstance(error, ServiceError) else None
        ),
        observers=observers,
    )


async def observed(app: Any, **scope: Any) -> Exchange[Any, Any]:
    """Return the exchange that two observers received."""
    observers = [Observer(), Observer()]

    async def send(message: Any) -> None:
        """Read the message."""

    headers = [(b"x-request-id", b"mine"), *scope.pop("headers", ())]
    request = {"type": "http", "method": "POST", "path": "/things/secret", "headers": headers}
    request |= {"whole_body": b"", "on_disconnect": None}
    await observing(app, *observers)(request | scope, None, send)  # type: ignore[arg-type]
    (one,), (other,) = (observer.heard for observer in observers)
    assert one is other
    return one


async def test_a_request_and_its_reply() -> None:
    before = time.monotonic()
    found = await observed(answer)
    assert (found.method, found.route, found.request_id) == ("POST", "/things/{name}", "mine")
    assert (found.status, found.sent_bytes) == (207, 7)
    assert found.timings is TIMINGS
    assert before <= found.began < found.replied < found.ended <= time.monotonic()


@pytest.mark.parametrize(
    ("method", "reported"),
    [("GET", "GET"), ("QUERY", "QUERY"), ("get", "_OTHER"), ("BREW", "_OTHER")],
)
async def test_a_method_that_nobody_knows_is_another(method: str, reported: str) -> None:
    assert (await observed(answer, method=method)).method == reported


async def test_a_client_that_leaves_before_the_reply_has_no_status() -> None:
    async def leave(scope: Any, *_: Any) -> None:
        scope["on_disconnect"]()
        await asyncio.sleep(60)

    found = await observed(leave)
    assert (found.status, found.sent_bytes, found.timings) == (0, 0, None)
    assert (found.route, found.request_id) == ("unmatched", "mine")


async def test_a_request_that_fails_is_told_all_the_same() -> None:
    async def fail(*_: Any) -> None:
        raise ZeroDivisionError

    observer = Observer()
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "whole_body": b""}
    with pytest.raises(ZeroDivisionError):
        await observing(fail, observer)(scope | {"on_disconnect": None}, None, nothing)  # type: ignore[arg-type]
    assert [request.status for request in observer.heard] == [500]


async def nothing(*_: Any) -> None:
    """Do nothing."""


async def test_nothing_but_requests_is_told() -> None:
    seen = []

    async def lifespan(scope: Any, *_: Any) -> None:
        seen.append(scope)

    observer = Observer()
    await observing(lifespan, observer)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen == [{"type": "lifespan"}]
    assert observer.heard == []


async def test_preflights_are_told_without_an_id(artifact: Artifact) -> None:
    observer, origin = Observer(), {"origin": "https://a.example"}
    app = create_app(Settings(cors_origins="https://a.example"), [artifact], [FakeEngine(CONFIG)])
    app.exchanging.keywords["observers"].append(observer)  # type: ignore[attr-defined]
    async with Client(app) as client:
        for method in ("POST", "PUT"):
            asked = origin | {"access-control-request-method": method}
            await client.options("/encode", headers=asked)
    assert [(told.method, told.route, told.status) for told in observer.heard] == [
        ("OPTIONS", "/encode", 200),
        ("OPTIONS", "/encode", 400),
    ]
    assert {told.request_id for told in observer.heard} == {""}
    assert all(told.sent_bytes > 0 for told in observer.heard)
