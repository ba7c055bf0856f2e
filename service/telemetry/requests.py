"""Metrics of requests and replies, and the access log; neither has the content of a request.

Route templates of paths are metric labels with a bounded number of values.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import re
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol

from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from service.errors import EngineFailed, EngineOutOfMemory, EngineTimeout, ServiceError
from service.exchange import Exchange
from service.system import logs
from service.telemetry.registry import MOST_NOTES, ExemplarNote, Registry, observe

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
FAILURES = (EngineFailed, EngineOutOfMemory, EngineTimeout)
"""Errors of accepted requests, which do not count as rejections."""
FRAME_BYTES = 1024
"""Bytes of names, braces and headers in a reply, which predictions leave out."""
MAX_EXEMPLAR_ID = 64
"""Maximum characters of a request id in an exemplar; OpenMetrics allows 128 for all labels."""
Reply = tuple[int, float, int, int, float | None, ExemplarNote | None]
"""Status, seconds, bytes received and sent, ratio to the predicted bytes, and exemplar."""
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[^,]*")


def trace_id(exchange: Exchange[Any, Any]) -> str:
    """Return the trace id of a request's `traceparent`; empty unless there is one valid header.

    https://www.w3.org/TR/trace-context/#traceparent-header
    """
    match = _TRACEPARENT.fullmatch(exchange.headers.get(b"traceparent", b""))
    return str(match[1], "ascii") if match else ""


class HttpMetrics:
    """Metrics that the HTTP layer updates."""

    def __init__(self, registry: Registry) -> None:
        self.in_flight = 0
        """Number of requests whose reply is not complete."""
        self._registry = registry
        self._replies: dict[str, list[Reply]] = {}
        """Route → replies that are not counted yet."""
        self._templates: list[Route] = []

    def name_routes(self, routes: Iterable[BaseRoute]) -> None:
        """Store the routes of the application; fixed paths match first."""
        named = [route for route in routes if isinstance(route, Route)]
        self._templates = sorted(named, key=lambda route: bool(route.param_convertors))

    def route_of(self, scope: Scope) -> str:
        """Return the template of a request's route, also if the request never reached the route."""
        route = scope.get("route")
        if route is None:
            found = (one for one in self._templates if one.path_regex.match(scope["path"]))
            route = next(found, None)
        return UNMATCHED if route is None else str(route.path)

    def ended(self, exchange: Exchange[Any, Any]) -> None:
        """Note a reply, or that the client has left.

        An interrupted reply counts with the bytes that were sent.
        """
        if exchange.client_left:
            self._registry.client_disconnects.inc()
            return
        route, status, ratio = self.route_of(exchange.scope), exchange.status, None
        sent, request_id = exchange.sent_bytes, exchange.request_id
        seconds = time.monotonic() - exchange.received
        replies = self._replies.get(route)
        if replies is None:
            replies = self._replies[route] = self._registry.notes(partial(self._count, route))
        if exchange.predicted_bytes and status == 200:
            ratio = sent / (exchange.predicted_bytes + FRAME_BYTES)
        exemplar = None
        if b"traceparent" in exchange.headers and (trace := trace_id(exchange)):
            exemplar = {"trace_id": trace}, seconds, time.time()
        elif 0 < len(request_id) <= MAX_EXEMPLAR_ID:
            exemplar = {"request_id": request_id}, seconds, time.time()
        replies.append((status, seconds, exchange.received_bytes, sent, ratio, exemplar))
        if len(replies) >= MOST_NOTES:
            self._registry.count()

    def _count(self, route: str, replies: list[Reply]) -> None:
        """Count noted replies of a route."""
        statuses, seconds, received, sent, ratios, exemplars = zip(*replies, strict=True)
        for status, count in collections.Counter(statuses).items():
            self._registry.requests.labels(route, str(status)).inc(count)
        self._registry.request_bytes.labels(route).inc(sum(received))
        self._registry.reply_bytes.labels(route).inc(sum(sent))
        observe(self._registry.request_seconds.labels(route), seconds, exemplars)
        if known := [ratio for ratio in ratios if ratio is not None]:
            observe(self._registry.reply_prediction_ratio.labels(route), known)

    def refused(self, scope: Scope, error: ServiceError) -> None:
        """Record an error reply, unless the request had been accepted."""
        if error.status != 500 and not isinstance(error, FAILURES):
            self._registry.refused.labels(self.route_of(scope), error.reason).inc()

    def refused_unread(self, path: str, error: ServiceError) -> None:
        """Record an error reply to a request that could not be parsed."""
        scope = {"path": path}
        self._registry.requests.labels(self.route_of(scope), str(error.status)).inc()
        self.refused(scope, error)


class RequestObserver(Protocol):
    """Observer of every request, called on the event loop."""

    def observe(self, exchange: Exchange[Any, Any]) -> None:
        """Handle a completed request."""

    def close(self) -> None:
        """Finish; no requests will follow."""


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
        self._waiting: list[Exchange[Any, Any]] = []

    def observe(self, exchange: Exchange[Any, Any]) -> None:
        """Log a request within `WAIT_SECONDS`."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(WAIT_SECONDS, self.flush)
        self._waiting.append(exchange)

    def flush(self) -> None:
        """Write the lines of all requests so far."""
        waiting, self._waiting = self._waiting, []
        log = logging.getLogger(ACCESS)
        lines = [
            _line(exchange, level)
            for exchange in waiting
            if log.isEnabledFor(level := _level(exchange))
        ]
        for first in range(0, len(lines), MOST_LINES):
            log.info("", extra={"lines": lines[first : first + MOST_LINES]})

    def close(self) -> None:
        """Write the last lines."""
        self.flush()
        super().close()


def _level(exchange: Exchange[Any, Any]) -> int:
    """Return the level of a request's line."""
    quiet = exchange.route in QUIET_ROUTES and not 400 <= exchange.status < 500
    return logging.DEBUG if quiet else logging.INFO


def _line(exchange: Exchange[Any, Any], level: int) -> dict[str, object]:
    """Return a request's line with its fields."""
    fields: dict[str, object] = {
        "method": exchange.method,
        "route": exchange.route,
        "status": exchange.status,
        "ms": round(1000 * (exchange.ended - exchange.began), 1),
        "bytes": exchange.sent_bytes,
    }
    message = "{method} {route} {status}, {ms} ms, {bytes} bytes".format_map(fields)
    for name, value in (("key", exchange.key), ("trace_id", trace_id(exchange))):
        if value:
            fields[name] = value
            message += f", {name} {value}"
    written = time.time() - (time.monotonic() - exchange.ended)
    return logs.line(written, level, ACCESS, message, exchange.request_id) | fields
