"""Installation of the middleware around the routes, the outermost last."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from service.http.admission import Admission, allowed_hosts, keys_of
from service.http.exchange import BodyLimits, ErrorResponse, ExchangeMiddleware
from service.inference.fingerprint import EXPECT_HEADER, FINGERPRINT_HEADER
from service.inference.text_warnings import HEADERS
from service.settings import Settings
from service.system.budget import ByteBudget
from service.telemetry.http_metrics import HttpMetrics
from service.telemetry.requests import ObservationMiddleware, RequestObserver

REQUEST_HEADERS = (
    "authorization",
    "content-type",
    "accept",
    "x-request-id",
    "x-request-timeout-ms",
    EXPECT_HEADER,
)
"""Headers that pages of other origins may send."""
RESPONSE_HEADERS = (
    "x-request-id",
    "retry-after",
    "x-total-time",
    "x-tokenization-time",
    "x-queue-time",
    "x-inference-time",
    "x-compute-type",
    "x-compute-time",
    "x-compute-characters",
    "x-compute-tokens",
    "x-model",
    FINGERPRINT_HEADER,
    *HEADERS.values(),
)
"""Headers that pages of other origins may read."""


class Application(FastAPI):
    """FastAPI application whose added middleware is around FastAPI's own.

    Requests that the middleware answers pass through none of FastAPI's layers.
    """

    def build_middleware_stack(self) -> ASGIApp:
        """Return the layers around the routes."""
        added, self.user_middleware = self.user_middleware, []
        app = super().build_middleware_stack()
        self.user_middleware = added
        for layer, arguments, options in reversed(added):
            app = layer(app, *arguments, **options)
        return app


def install(
    app: FastAPI,
    settings: Settings,
    metrics: HttpMetrics,
    budgets: tuple[ByteBudget, ByteBudget],
    observers: Sequence[RequestObserver],
    error_response: ErrorResponse,
) -> None:
    """Add the middleware to an application; preflight requests of other origins need no key.

    Budgets are of all bodies in flight, and of all requests and replies.
    """
    limits = BodyLimits(settings.max_body_bytes, settings.client_timeout_seconds)
    hosts = allowed_hosts(settings.allowed_hosts, settings.host)
    admission = Admission(hosts, keys_of(settings), settings.metrics_port)
    app.add_middleware(
        ExchangeMiddleware,
        metrics=metrics,
        limits=limits,
        budgets=budgets,
        admission=admission,
        error_response=error_response,
    )
    if settings.cors_origins is not None:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[origin.strip() for origin in settings.cors_origins.split(",")],
            allow_methods=["GET", "POST"],
            allow_headers=REQUEST_HEADERS,
            expose_headers=RESPONSE_HEADERS,
        )
    if observers:
        app.add_middleware(ObservationMiddleware, observers=observers, route_of=metrics.route_of)
