"""Around every request, in pure ASGI: its id, its timing, and what nobody foresaw."""

from __future__ import annotations

import re
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import logs
from service.errors import ServiceError
from service.http.problems import new_request_id, problem_response
from service.telemetry.metrics import Metrics

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_BODY = {b"content-length", b"transfer-encoding"}


class Progress:
    """How far a request is; the layers below write it into `scope["state"]["progress"]`."""

    __slots__ = ("complete", "left", "received", "status")

    def __init__(self) -> None:
        self.received: float | None = None
        """`time.perf_counter()` when its body was complete."""
        self.status = 0
        """Of the reply, once that has begun."""
        self.complete = False
        """The reply is."""
        self.left = False
        """The client has left, and is not answered."""


class RequestMiddleware:
    """Gives each request an id, times and counts it, and answers it if nobody else does."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(scope)
        logs.request_id.set(request_id)
        progress = Progress()
        state = scope.setdefault("state", {})
        state["request_id"], state["progress"] = request_id, progress
        began = time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                progress.status = message["status"]
                elapsed = round(1000 * (time.perf_counter() - (progress.received or began)))
                message["headers"] = [
                    *message.get("headers", []),
                    (b"x-request-id", request_id.encode("ascii")),
                    (b"x-total-time", str(elapsed).encode("ascii")),
                ]
                if progress.received is None and _has_body(scope):
                    message["headers"].append((b"connection", b"close"))
            else:
                progress.complete = not message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except Exception:
            if not progress.status:
                failure = ServiceError("something went wrong inside the service")
                await problem_response(failure, request_id)(scope, receive, send_with_headers)
            self._count(scope, progress, began)
            raise
        if not progress.left:
            self._count(scope, progress, began)

    def _count(self, scope: Scope, progress: Progress, began: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        elapsed = time.perf_counter() - (progress.received or began)
        self.metrics.requests.labels(route, str(progress.status)).inc()
        self.metrics.request_seconds.labels(route).observe(elapsed)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return new_request_id()


def _has_body(scope: Scope) -> bool:
    return any(name in _BODY and value != b"0" for name, value in scope["headers"])
