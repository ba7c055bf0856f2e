"""The state of one serving process, as the application, its routes and its server share it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import FastAPI

from model.artifact.manifest import Artifact
from service.health.live_verification import LiveVerification
from service.health.peers import Peers
from service.health.readiness import Readiness
from service.http.budget import ByteBudget
from service.inference.core import Inference
from service.settings import Settings
from service.telemetry.metrics import Metrics


@dataclass
class ServiceState:
    """The parts of a service, and how it is."""

    settings: Settings
    artifact: Artifact
    inference: Inference
    readiness: Readiness
    live_verification: LiveVerification
    metrics: Metrics
    bodies: ByteBudget
    """Bytes of all requests' bodies in flight."""
    replies: ByteBudget
    """Bytes of all replies in flight."""
    peers: Peers | None
    """The other workers of a service of several processes."""
    give_up: Callable[[str], None]
    """Ends the process, and is told why; whoever runs the application sets it."""
    precision_note: str | None = None
    """Why another precision is likely faster on this processor."""
    hangs: bool = False
    """Whether a call still runs in an engine though the application has ended."""

    async def refresh_metrics(self) -> str:
        """Bring those metrics up to date that are not kept as things happen; nothing to answer."""
        for name, lane in self.inference.engines.default.lanes.items():
            self.metrics.queue_tokens.labels(name).set(lane.queued_tokens)
        return ""


def state_of(app: FastAPI) -> ServiceState:
    """The state of the service that an application is."""
    state: ServiceState = app.state.service
    return state
