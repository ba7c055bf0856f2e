"""What the access log and the traces may know of a request: facts about it, never what it says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "QUERY"}
"""Any other is told as `_OTHER`, as OpenTelemetry's conventions have it."""


class Took(NamedTuple):
    """What a reply took, one thing after the other. Of a streamed one, its first part."""

    tokens: int
    began: float
    """`time.monotonic()` when the first text was about to be tokenised."""
    tokenization_seconds: float
    queue_seconds: float
    inference_seconds: float


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its reply, once both are over."""

    method: str
    route: str
    """The template, or `unmatched`."""
    request_id: str
    traceparent: str
    """The caller's, as it came; or nothing."""
    status: int | None
    """None: the client left before the reply began."""
    sent_bytes: int
    began_ns: int
    """`time.time_ns()` when the request's head was there."""
    began: float
    """`time.monotonic()` then."""
    replied: float
    """`time.monotonic()` when the reply began, or when all was over."""
    ended: float
    """`time.monotonic()` when the reply was sent."""
    took: Took | None
    """Of a route that computes, if it answered."""


class ExchangeObserver(Protocol):
    """Is told of every request, on the event loop."""

    def observe(self, exchange: Exchange) -> None:
        """A request is over."""

    def close(self) -> None:
        """There will be no more."""


class ExchangeMiddleware:
    """Tells observers of every request; the outermost layer, where there are any."""

    def __init__(self, app: ASGIApp, observers: Sequence[ExchangeObserver]) -> None:
        self.app = app
        self.observers = observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began_ns, began = time.time_ns(), time.monotonic()
        state = scope.setdefault("state", {})
        state["took"] = None
        status: int | None = None
        replied, sent_bytes = None, 0

        async def watched_send(message: Message) -> None:
            nonlocal status, replied, sent_bytes
            if message["type"] == "http.response.start":
                status, replied = message["status"], time.monotonic()
            else:
                sent_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, watched_send)
        finally:
            ended = time.monotonic()
            exchange = Exchange(
                method=scope["method"] if scope["method"] in METHODS else "_OTHER",
                route=getattr(scope.get("route"), "path", "unmatched"),
                request_id=state.get("request_id", ""),
                traceparent=_traceparent(scope),
                status=status,
                sent_bytes=sent_bytes,
                began_ns=began_ns,
                began=began,
                replied=replied or ended,
                ended=ended,
                took=state["took"],
            )
            for observer in self.observers:
                observer.observe(exchange)


def _traceparent(scope: Scope) -> str:
    found = [value for name, value in scope["headers"] if name == b"traceparent"]
    return str(found[0], "latin-1") if len(found) == 1 else ""
