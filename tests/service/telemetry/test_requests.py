"""Observation of a request: its summary, without its content."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from service.inference.timings import Timings
from service.telemetry.requests import ObservationMiddleware, RequestSummary, RouteTemplates
from tests.service.harness import request_context

pytestmark = pytest.mark.anyio
TIMINGS = Timings(3, 0.0, 0.0)
ROUTES = RouteTemplates()


class Observer:
    """Observer that records the summaries."""

    def __init__(self) -> None:
        self.heard: list[RequestSummary] = []

    def observe(self, request: RequestSummary) -> None:
        self.heard.append(request)

    def close(self) -> None:
        """Do nothing."""


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Send a reply in two parts, by a route that computes."""
    scope["route"] = SimpleNamespace(path="/things/{name}")
    scope["context"] = request_context("mine", TIMINGS)
    await asyncio.sleep(0.01)
    await send({"type": "http.response.start", "status": 207, "headers": []})
    await send({"type": "http.response.body", "body": b"123", "more_body": True})
    await asyncio.sleep(0.01)
    await send({"type": "http.response.body", "body": b"4567"})


async def observed(app: Any, **scope: Any) -> RequestSummary:
    """Return the summary that two observers received equally."""
    observers = [Observer(), Observer()]

    async def send(message: Any) -> None:
        """Read the message."""

    request = {"type": "http", "method": "POST", "path": "/things/secret", "headers": []}
    middleware = ObservationMiddleware(app, observers, ROUTES.of_scope)
    await middleware(request | scope, None, send)
    (one,), (other,) = (observer.heard for observer in observers)
    assert one == other
    return one


async def test_a_request_and_its_reply() -> None:
    before, before_ns = time.monotonic(), time.time_ns()
    found = await observed(answer)
    assert (found.method, found.route, found.request_id) == ("POST", "/things/{name}", "mine")
    assert (found.status, found.sent_bytes) == (207, 7)
    assert found.timings is TIMINGS
    assert before <= found.began < found.replied < found.ended <= time.monotonic()
    assert before_ns <= found.began_ns <= time.time_ns()
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("method", "reported"),
    [("GET", "GET"), ("QUERY", "QUERY"), ("get", "_OTHER"), ("BREW", "_OTHER")],
)
async def test_a_method_that_nobody_knows_is_another(method: str, reported: str) -> None:
    assert (await observed(answer, method=method)).method == reported


@pytest.mark.parametrize(
    ("headers", "reported"),
    [
        ([(b"traceparent", b"00-1-2-01")], "00-1-2-01"),
        ([(b"tracestate", b"x")], ""),
        ([(b"traceparent", b"00-1-2-01"), (b"traceparent", b"00-3-4-01")], ""),
        ([(b"traceparent", b"\xff")], "\xff"),
    ],
)
async def test_a_traceparent_is_told_if_there_is_one(
    headers: list[tuple[bytes, bytes]], reported: str
) -> None:
    assert (await observed(answer, headers=headers)).traceparent == reported


async def test_a_client_that_leaves_before_the_reply_has_no_status() -> None:
    async def leave(*_: Any) -> None:
        """Disconnect without a reply, a route and an id."""

    found = await observed(leave)
    assert (found.status, found.sent_bytes, found.timings) == (None, 0, None)
    assert (found.route, found.request_id) == ("unmatched", "")
    assert found.replied == found.ended


async def test_a_request_that_fails_is_told_all_the_same() -> None:
    async def fail(*_: Any) -> None:
        raise ZeroDivisionError

    observer = Observer()
    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    with pytest.raises(ZeroDivisionError):
        await ObservationMiddleware(fail, [observer], ROUTES.of_scope)(scope, None, None)
    assert len(observer.heard) == 1


async def test_nothing_but_requests_is_told() -> None:
    seen = []

    async def lifespan(scope: Any, *_: Any) -> None:
        seen.append(scope)

    observer = Observer()
    middleware = ObservationMiddleware(lifespan, [observer], ROUTES.of_scope)
    await middleware({"type": "lifespan"}, None, None)
    assert seen == [{"type": "lifespan"}]
    assert observer.heard == []
