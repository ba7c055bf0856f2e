"""The layers between the server and the routes, the outermost last."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from service.http.bodies import BodyLimits, BodyMiddleware
from service.http.keys import KeyMiddleware
from service.http.requests import RequestMiddleware
from service.settings import Settings
from service.telemetry.metrics import Metrics

ASKED_HEADERS = (
    "authorization",
    "content-type",
    "accept",
    "x-request-id",
    "x-request-timeout-ms",
)
TOLD_HEADERS = (
    "x-request-id",
    "retry-after",
    "x-total-time",
    "x-tokenization-time",
    "x-queue-time",
    "x-inference-time",
    "x-compute-tokens",
)


def install(app: FastAPI, settings: Settings, metrics: Metrics) -> None:
    """Bodies are read behind the keys; what pages of other origins ask beforehand needs none."""
    limits = BodyLimits(
        settings.max_body_bytes,
        settings.max_body_bytes_in_flight,
        settings.client_timeout_seconds,
    )
    app.add_middleware(BodyMiddleware, metrics=metrics, limits=limits)
    if settings.api_keys is not None:
        app.add_middleware(KeyMiddleware, keys=settings.api_keys)
    app.add_middleware(RequestMiddleware, metrics=metrics)
    if settings.cors_origins is not None:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[origin.strip() for origin in settings.cors_origins.split(",")],
            allow_methods=["GET", "POST"],
            allow_headers=ASKED_HEADERS,
            expose_headers=TOLD_HEADERS,
        )
