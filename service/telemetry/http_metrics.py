"""Metrics of requests and replies: rate, errors and duration by route, and rejections."""

from __future__ import annotations

import collections
import time
from functools import partial
from typing import Any

from starlette.types import Scope

from service.errors import EngineFailed, EngineOutOfMemory, EngineTimeout, ServiceError
from service.exchange import Exchange
from service.telemetry.registry import MOST_NOTES, ExemplarNote, Registry, observe
from service.telemetry.requests import RouteTemplates, trace_id

FAILURES = (EngineFailed, EngineOutOfMemory, EngineTimeout)
"""Errors of accepted requests, which do not count as rejections."""
FRAME_BYTES = 1024
"""Bytes of names, braces and headers in a reply, which predictions leave out."""
MAX_EXEMPLAR_ID = 64
"""Maximum characters of a request id in an exemplar; OpenMetrics allows 128 for all labels."""
Reply = tuple[int, float, int, int, float | None, ExemplarNote | None]
"""Status, seconds, bytes received and sent, ratio to the predicted bytes, and exemplar."""


class HttpMetrics:
    """Metrics that the HTTP layer updates."""

    def __init__(self, registry: Registry) -> None:
        self.routes = RouteTemplates()
        """Route templates of the application; empty until the application exists."""
        self.in_flight = 0
        """Number of requests whose reply is not complete."""
        self._registry = registry
        self._replies: dict[str, list[Reply]] = {}
        """Route → replies that are not counted yet."""
        self.disconnects = registry.client_disconnects

    def route_of(self, scope: Scope) -> str:
        """Return the template of a request's route, also if the request never reached the route."""
        return self.routes.of_scope(scope)

    def answered(self, exchange: Exchange[Any, Any]) -> None:
        """Note a reply; an interrupted reply counts with the bytes that were sent."""
        route, status, ratio = self.routes.of_scope(exchange.scope), exchange.status, None
        seconds, sent, request_id = exchange.seconds, exchange.sent_bytes, exchange.request_id
        replies = self._replies.get(route)
        if replies is None:
            replies = self._replies[route] = self._registry.notes(partial(self._count, route))
        if exchange.predicted_bytes and status == 200:
            ratio = sent / (exchange.predicted_bytes + FRAME_BYTES)
        exemplar = None
        if b"traceparent" in exchange.headers and (trace := trace_id(exchange.scope["headers"])):
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
        self._registry.requests.labels(self.routes.of(path), str(error.status)).inc()
        self.refused({"path": path}, error)
