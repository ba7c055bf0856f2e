"""Headscope under Ray Serve: `serve run deploy.ray.serving:app`, or deploy/ray/serve.yaml.

https://docs.ray.io/en/latest/serve/http-guide.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application

from deploy.ray import replica

MOST_REQUESTS = 20_000
"""Maximum requests that Serve sends to a replica at a time: more than the service admits (16,384
texts a lane), so that a client gets the service's 429 with `Retry-After`, never Serve's queue."""
HEALTH_SECONDS = 2.0
"""Seconds between checks of a replica; three failures in a row, or a dead process, replace it."""
CHECK_SECONDS = 10.0
"""Timeout of a check: longer than a probe of every model takes to fail."""
DRAIN_SECONDS = 35.0
"""Seconds for the requests of a stopping replica: the service's own limit on a request, and time
for the reply."""


def application(build: Callable[[], FastAPI], **options: Any) -> Application:
    """Return a Serve application of replicas.

    Args:
        build: function that makes the ASGI application, in each replica's process.
        **options: options of `serve.deployment`; a configuration file takes precedence.

    """

    class Headscope:
        """Replica of the service."""

        app: FastAPI
        """Result of `build`, which Serve calls."""

        async def check_health(self) -> None:
            """Check readiness, on behalf of Serve."""
            await replica.check(self.app)

    deployment = serve.deployment(
        name=replica.NAME,
        max_ongoing_requests=MOST_REQUESTS,
        max_queued_requests=-1,
        health_check_period_s=HEALTH_SECONDS,
        health_check_timeout_s=CHECK_SECONDS,
        graceful_shutdown_timeout_s=DRAIN_SECONDS,
        graceful_shutdown_wait_loop_s=0.5,
    )
    return deployment(serve.ingress(build)(Headscope)).options(**options).bind()


app = application(replica.build)
