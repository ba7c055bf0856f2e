"""The application of one Ray Serve replica: the service without its own listener.

Serve's proxy stands between the client and the application (ASGI,
https://asgi.readthedocs.io); docs/decisions/0027 lists what changes with that.
"""

from __future__ import annotations

import gc
import logging
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.app import create_app
from service.cli.serve import open_served
from service.errors import ServiceError
from service.serving.state import state_of
from service.settings import Settings
from service.system import logs, resources

NAME = "Headscope"
"""Of the deployment, by which configuration files choose its options."""

_log = logging.getLogger("headscope")


class Unready(RuntimeError):
    """A replica that does not answer requests, or not rightly; its message crosses processes."""


class WithoutRequestId:
    """Leaves `x-request-id` out of replies, to which Serve's proxy adds the same id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""

        async def without(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", [])
                message["headers"] = [pair for pair in headers if pair[0] != b"x-request-id"]
            await send(message)

        await self.app(scope, receive, without)


def replica_settings(**chosen: Any) -> Settings:
    """The settings of a replica: the environment's, without those of a listener.

    Args:
        **chosen: settings that win over the environment.

    Raises:
        ValueError: a variable is no setting, or its value is wrong; or several workers are asked
            for, which are Serve's replicas here.

    """
    settings = Settings(host="0.0.0.0", **chosen)
    if settings.metrics_port is not None:
        raise ValueError(
            "HEADSCOPE_METRICS_PORT opens no port in a replica: /metrics is at Serve's own"
        )
    if settings.workers > 1:
        raise ValueError(
            "HEADSCOPE_WORKERS is for one machine: under Ray Serve choose num_replicas or "
            "autoscaling_config, and leave it out"
        )
    return settings


def served_application(app: FastAPI) -> FastAPI:
    """An application as Serve's proxy is to see it."""
    app.add_middleware(WithoutRequestId)
    gc.freeze()  # as `Server.run`: a look through what stays for ever stops every request
    return app


def build() -> FastAPI:
    """The service over the models that the environment names.

    Raises:
        ModelError: an artifact cannot be loaded, or the device is not there.
        ServiceError: the engine cannot be started.
        ValueError: a setting is wrong.

    """
    settings = replica_settings()
    resources.settle_allocator()
    logs.configure(settings.log_level, settings.log_format)
    return served_application(create_app(settings, open_served(settings, _log.info)))


async def check(app: FastAPI) -> None:
    """Check that the replica answers, by the readiness of `GET /health/ready`.

    Raises:
        Unready: it does not, or not rightly; Serve then replaces it.

    """
    try:
        await state_of(app).readiness.check()
    except ServiceError as error:
        raise Unready(error.detail) from None
