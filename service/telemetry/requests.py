"""Facts about each request for the access log and the traces, without any of its content."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.inference.timings import Timings

METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "QUERY"}
"""Any other method is reported as `_OTHER`, as in OpenTelemetry's conventions."""


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """A request and its reply, once both are over."""

    method: str
    route: str
    """The template, or `unmatched`."""
    request_id: str
    traceparent: str
    """The caller's header as it came; or empty."""
    status: int | None
    """None: the client left before the reply began."""
    sent_bytes: int
    began_ns: int
    """`time.time_ns()` when the request's head was complete."""
    began: float
    """`time.monotonic()` at that moment."""
    replied: float
    """`time.monotonic()` when the reply began, or when all was over."""
    ended: float
    """`time.monotonic()` when the reply was sent."""
    timings: Timings | None
    """The steps of a route that computes, if it answered; of a streamed reply its first part's."""
    key: str = ""
    """The name of the caller's key; or empty."""


class RequestObserver(Protocol):
    """Hears of every request, on the event loop."""

    def observe(self, request: RequestSummary) -> None:
        """A request is over."""

    def close(self) -> None:
        """There will be no more."""


class ObservationMiddleware:
    """Tells observers of every request; the outermost layer, where there are any."""

    def __init__(
        self, app: ASGIApp, observers: Sequence[RequestObserver], route_of: Callable[[Scope], str]
    ) -> None:
        """Stand around an application.

        Args:
            app: answers.
            observers: hear of it.
            route_of: the template of a request's route, also of one refused before it got there.

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
        state = scope.setdefault("state", {})
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
            summary = RequestSummary(
                method=scope["method"] if scope["method"] in METHODS else "_OTHER",
                route=self.route_of(scope),
                request_id=state.get("request_id", ""),
                traceparent=_traceparent(scope),
                status=status,
                sent_bytes=sent_bytes,
                began_ns=began_ns,
                began=began,
                replied=replied or ended,
                ended=ended,
                timings=state.get("timings"),
                key=state.get("key", ""),
            )
            for observer in self.observers:
                observer.observe(summary)


def _traceparent(scope: Scope) -> str:
    found = [value for name, value in scope["headers"] if name == b"traceparent"]
    return str(found[0], "latin-1") if len(found) == 1 else ""
