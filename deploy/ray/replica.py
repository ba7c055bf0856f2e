"""Application of one Ray Serve replica: the service without its own listener.

Serve's proxy stands between the client and the application (ASGI,
https://asgi.readthedocs.io); docs/decisions/0009-whole-processes-on-one-port.md
lists what changes with that.
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
from service.models.state import state_of
from service.settings import Settings
from service.system import logs, resources

NAME = "Headscope"
"""Name of the deployment, by which configuration files set its options."""

_log = logging.getLogger("headscope")


class Unready(RuntimeError):
    """Failed health check of a replica, with a message that can be pickled between processes."""


class WithoutRequestId:
    """Middleware that removes `x-request-id` from replies, since Serve's proxy adds the same id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan."""

        async def without(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", [])
                message["headers"] = [pair for pair in headers if pair[0] != b"x-request-id"]
            await send(message)

        await self.app(scope, receive, without)


def replica_settings(**chosen: Any) -> Settings:
    """Return the settings of a replica: the environment's, but with Serve as the listener.

    Args:
        **chosen: settings that take precedence over the environment.

    Raises:
        ValueError: a variable is not a setting, or its value is wrong; or a metrics port or several
            workers are requested.

    """
    settings = Settings(host="0.0.0.0", **chosen)
    if settings.metrics_port is not None:
        raise ValueError(
            "HEADSCOPE_METRICS_PORT does not apply to Ray Serve: unset it, and read /metrics at "
            "Serve's port"
        )
    if settings.workers > 1:
        raise ValueError(
            "HEADSCOPE_WORKERS does not apply to Ray Serve: unset it, and set num_replicas or "
            "autoscaling_config"
        )
    return settings


def served_application(app: FastAPI) -> FastAPI:
    """Adapt an application to Serve's proxy, and exclude its objects from garbage collection."""
    app.add_middleware(WithoutRequestId)
    gc.freeze()  # as `Server.run`: collecting permanent objects would pause every request
    return app


def build() -> FastAPI:
    """Build the service of the models that the environment names.

    Raises:
        ModelError: an artifact cannot be loaded, or the device is missing.
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
        Unready: the replica does not answer, or answers wrongly; Serve then replaces it.

    """
    try:
        await state_of(app).readiness.check()
    except ServiceError as error:
        raise Unready(error.detail) from None
