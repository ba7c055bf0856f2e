"""Summaries of requests for the access log and traces, without content."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.inference.timings import Timings
from service.request_context import RequestContext

METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "QUERY"}
"""Known methods; others are reported as `_OTHER`, as in OpenTelemetry's conventions."""


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """Summary of a completed request and its reply."""

    method: str
    route: str
    """Route template, or `unmatched`."""
    request_id: str
    traceparent: str
    """Caller's `traceparent` header, unparsed; or empty."""
    status: int | None
    """Status of the reply; None if the client left before the reply began."""
    sent_bytes: int
    began_ns: int
    """Time at which the request's head was complete, by `time.time_ns()`."""
    began: float
    """Time at which the request's head was complete, by `time.monotonic()`."""
    replied: float
    """Time at which the reply began, or else the request ended, by `time.monotonic()`."""
    ended: float
    """Time at which the reply was sent, by `time.monotonic()`."""
    timings: Timings | None
    """Timings of a reply with computation; for a streamed reply, of its first part."""
    key: str = ""
    """Name of the caller's API key; or empty."""


class RequestObserver(Protocol):
    """Observer of every request, called on the event loop."""

    def observe(self, request: RequestSummary) -> None:
        """Handle a completed request."""

    def close(self) -> None:
        """Finish; no requests will follow."""


class ObservationMiddleware:
    """Outermost middleware, which passes a summary of every request to observers."""

    def __init__(
        self, app: ASGIApp, observers: Sequence[RequestObserver], route_of: Callable[[Scope], str]
    ) -> None:
        """Wrap an application.

        Args:
            app: wrapped application.
            observers: receivers of the summaries.
            route_of: function from a request to its route template, also for requests that were
                rejected before routing.

        """
        self.app = app
        self.observers = observers
        self.route_of = route_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began_ns, began = time.time_ns(), time.monotonic()
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
            context: RequestContext[object] | None = scope.get("context")  # None of a preflight
            summary = RequestSummary(
                method=scope["method"] if scope["method"] in METHODS else "_OTHER",
                route=self.route_of(scope),
                request_id=context.request_id if context else "",
                traceparent=_traceparent(scope),
                status=status,
                sent_bytes=sent_bytes,
                began_ns=began_ns,
                began=began,
                replied=replied or ended,
                ended=ended,
                timings=context.timings if context else None,
                key=context.key if context else "",
            )
            for observer in self.observers:
                observer.observe(summary)


def _traceparent(scope: Scope) -> str:
    values = [value for name, value in scope["headers"] if name == b"traceparent"]
    return str(values[0], "latin-1") if len(values) == 1 else ""
