"""Metrics of requests and replies: rate, errors and duration by route, and rejections."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import Scope

from service.errors import EngineFailed, EngineOutOfMemory, EngineTimeout, ServiceError
from service.request_context import RequestContext
from service.telemetry.buckets import PREDICTION, SECONDS
from service.telemetry.requests import RouteTemplates, trace_id

FAILURES = (EngineFailed, EngineOutOfMemory, EngineTimeout)
"""Errors of accepted requests, which do not count as rejections."""
FRAME_BYTES = 1024
"""Bytes of names, braces and headers in a reply, which predictions leave out."""
MAX_EXEMPLAR_ID = 64
"""Maximum characters of a request id in an exemplar; OpenMetrics allows 128 for all labels."""


class AnsweredRequest(NamedTuple):
    """Request whose reply was sent."""

    scope: Scope
    context: RequestContext[object]
    status: int
    seconds: float
    received_bytes: int
    sent_bytes: int


class RouteSeries(NamedTuple):
    """Series of a route's replies with one status."""

    route: str
    requests: Counter
    seconds: Histogram
    received_bytes: Counter
    sent_bytes: Counter


class HttpMetrics:
    """Metrics that the HTTP layer updates."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Declare the metrics."""
        self.routes = RouteTemplates()
        """Route templates of the application; empty until the application exists."""
        self._known: dict[tuple[str, int], RouteSeries] = {}
        self.requests = Counter(
            "headscope_requests",
            "Requests answered.",
            ["route", "status"],
            registry=registry,
        )
        self.request_seconds = Histogram(
            "headscope_request_seconds",
            "Time from the last byte of a request to the last byte of its reply.",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge(
            "headscope_requests_in_flight",
            "Requests whose reply is not complete, including the request for metrics.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.request_bytes = Counter(
            "headscope_request_bytes",
            "Bytes of the bodies of answered requests.",
            ["route"],
            registry=registry,
        )
        self.reply_bytes = Counter(
            "headscope_reply_bytes",
            "Bytes of the bodies of replies.",
            ["route"],
            registry=registry,
        )
        self.reply_prediction = Histogram(
            "headscope_reply_prediction_ratio",
            "Ratio of the bytes of a reply to the bytes that were predicted and reserved.",
            ["route"],
            buckets=PREDICTION,
            registry=registry,
        )
        self.disconnects = Counter(
            "headscope_client_disconnects",
            "Requests whose client left before the reply was complete.",
            registry=registry,
        )
        self.refusals = Counter(
            "headscope_refused",
            "Rejected requests: all errors except failures of accepted requests.",
            ["route", "reason"],
            registry=registry,
        )

    def route_of(self, scope: Scope) -> str:
        """Return the template of a request's route, also if the request never reached the route."""
        return self.routes.of_scope(scope)

    def answered(self, request: AnsweredRequest) -> None:
        """Record a reply; an interrupted reply counts with the bytes that were sent."""
        series = self._series(self.route_of(request.scope), request.status)
        series.requests.inc()
        series.seconds.observe(request.seconds, _exemplar(request))
        series.received_bytes.inc(request.received_bytes)
        series.sent_bytes.inc(request.sent_bytes)
        predicted = request.context.predicted_bytes
        if predicted and request.status == 200:
            ratio = request.sent_bytes / (predicted + FRAME_BYTES)
            self.reply_prediction.labels(series.route).observe(ratio)

    def _series(self, route: str, status: int) -> RouteSeries:
        """Return the series of a route's replies, which are looked up once."""
        if (route, status) not in self._known:
            self._known[route, status] = RouteSeries(
                route,
                self.requests.labels(route, str(status)),
                self.request_seconds.labels(route),
                self.request_bytes.labels(route),
                self.reply_bytes.labels(route),
            )
        return self._known[route, status]

    def refused(self, scope: Scope, error: ServiceError) -> None:
        """Record an error reply, unless the request had been accepted."""
        if error.status != 500 and not isinstance(error, FAILURES):
            self.refusals.labels(self.route_of(scope), error.reason).inc()

    def refused_unread(self, path: str, error: ServiceError) -> None:
        """Record an error reply to a request that could not be parsed."""
        self.requests.labels(self.routes.of(path), str(error.status)).inc()
        self.refused({"path": path}, error)


def _exemplar(request: AnsweredRequest) -> dict[str, str] | None:
    """Return the labels of an exemplar: the caller's trace id, or else the request id."""
    traced = b"traceparent" in request.context.headers
    if traced and (trace := trace_id(request.scope.get("headers", ()))):
        return {"trace_id": trace}
    request_id = request.context.request_id
    return {"request_id": request_id} if 0 < len(request_id) <= MAX_EXEMPLAR_ID else None
