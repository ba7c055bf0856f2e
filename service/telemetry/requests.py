"""Summaries of requests for the access log and traces, without content; and the access log.

Route templates of paths are metric labels with a bounded number of values.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from service.exchange import Exchange
from service.inference.timings import Timings
from service.system import logs

PROBE_PATHS = {
    "/health",
    "/health/live",
    "/health/ready",
    "/v2/health/live",
    "/v2/health/ready",
}
"""Paths that do not require an API key."""
METRICS_PATH = "/metrics"


UNMATCHED = "unmatched"
"""Label of all paths without a route."""


class RouteTemplates:
    """Templates of an application's routes."""

    def __init__(self, routes: Iterable[BaseRoute] = ()) -> None:
        templates = [route for route in routes if isinstance(route, Route)]
        self._fixed = {route.path for route in templates if not route.param_convertors}
        self._patterns = [
            (route.path_regex, route.path) for route in templates if route.param_convertors
        ]

    def of(self, path: str) -> str:
        """Return the template of a path, or `UNMATCHED`."""
        if path in self._fixed:
            return path
        return next((name for regex, name in self._patterns if regex.match(path)), UNMATCHED)

    def of_scope(self, scope: Scope) -> str:
        """Return the template of a request's route, also if the request never reached the route."""
        route = scope.get("route")
        return self.of(scope["path"]) if route is None else str(route.path)


_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-.*")


def trace_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the trace id of a request's `traceparent`; empty unless there is one valid header.

    https://www.w3.org/TR/trace-context/#traceparent-header
    """
    values = [value for name, value in headers if name == b"traceparent"]
    match = _TRACEPARENT.fullmatch(values[0]) if len(values) == 1 else None
    return str(match[1], "ascii") if match else ""


METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "QUERY"}
"""Known methods; others are reported as `_OTHER`, as in OpenTelemetry's conventions."""


class RequestSummary(NamedTuple):
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


def summary_of(exchange: Exchange[Any, Any], route: str) -> RequestSummary:
    """Return the summary of a request that has ended; `route` is its template."""
    ended, method = time.monotonic(), exchange.scope["method"]
    values = [value for name, value in exchange.scope["headers"] if name == b"traceparent"]
    return RequestSummary(
        method=method if method in METHODS else "_OTHER",
        route=route,
        request_id=exchange.request_id,
        traceparent=str(values[0], "latin-1") if len(values) == 1 else "",
        status=exchange.status or None,
        sent_bytes=exchange.sent_bytes,
        began_ns=time.time_ns() - round(1e9 * (ended - exchange.began)),
        began=exchange.began,
        replied=exchange.replied or ended,
        ended=ended,
        timings=exchange.timings,
        key=exchange.key,
    )


QUIET_ROUTES = {*PROBE_PATHS, METRICS_PATH}

ACCESS = "headscope.access"
"""Name of the logger of requests."""
WAIT_SECONDS = 0.1
"""Time for which lines wait, to be written together."""
MOST_LINES = 8
"""Number of lines of one write, of up to 500 bytes each: a pipe takes 4096 bytes as a whole, and
several workers write to it."""


class AccessLog(logging.Handler):
    """Logger of requests; status 0 means that the client left before the reply began.

    Probes and scrapes, which come every few seconds, are logged at level debug, unless they are
    rejected, such as a scrape without a key. The end of logging flushes it, as it is a handler.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[RequestSummary] = []

    def observe(self, request: RequestSummary) -> None:
        """Log a request within `WAIT_SECONDS`."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(WAIT_SECONDS, self.flush)
        self._waiting.append(request)

    def flush(self) -> None:
        """Write the lines of all requests so far."""
        waiting, self._waiting = self._waiting, []
        log = logging.getLogger(ACCESS)
        lines = [
            _line(request, level)
            for request in waiting
            if log.isEnabledFor(level := _level(request))
        ]
        for first in range(0, len(lines), MOST_LINES):
            log.info("", extra={"lines": lines[first : first + MOST_LINES]})

    def close(self) -> None:
        """Write the last lines."""
        self.flush()
        super().close()


def _level(request: RequestSummary) -> int:
    """Return the level of a request's line."""
    quiet = request.route in QUIET_ROUTES and not 400 <= (request.status or 0) < 500
    return logging.DEBUG if quiet else logging.INFO


def _line(request: RequestSummary, level: int) -> dict[str, object]:
    """Return a request's line with its fields."""
    seconds = request.ended - request.began
    fields: dict[str, object] = {
        "method": request.method,
        "route": request.route,
        "status": request.status or 0,
        "ms": round(1000 * seconds, 1),
        "bytes": request.sent_bytes,
    }
    message = "{method} {route} {status}, {ms} ms, {bytes} bytes".format_map(fields)
    trace = trace_id([(b"traceparent", request.traceparent.encode("latin-1"))])
    for name, value in (("key", request.key), ("trace_id", trace)):
        if value:
            fields[name] = value
            message += f", {name} {value}"
    written = request.began_ns / 1e9 + seconds
    return logs.line(written, level, ACCESS, message, request.request_id) | fields
