"""uvicorn around the application."""

from __future__ import annotations

import uvicorn

from model.artifact import Artifact
from service.app import create_app
from service.settings import Settings


def serve(settings: Settings, artifact: Artifact) -> int:
    """Serve until told to stop; returns the exit code.

    Raises:
        ModelError: the artifact cannot be loaded, or the device is not there.
        ServiceError: the engine cannot be started.

    """
    app = create_app(settings, artifact)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level=settings.log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=settings.drain_seconds,
    )
    server = uvicorn.Server(config)
    server.run()
    return 0 if server.started else 1
