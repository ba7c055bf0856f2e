"""State of a serving process, shared by the application, its routes and its server."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, field
from typing import Any

from service.health.readiness import Peers, Readiness
from service.http.turns import Turns
from service.inference.tokenization.cl100k import Cl100k
from service.models.control import ModelControl
from service.models.gauges import ModelGauges
from service.models.table import Models
from service.settings import Settings
from service.system.budget import ByteBudget
from service.telemetry.metrics import Metrics


@dataclass
class ServiceState:
    """State that all models of a service share."""

    settings: Settings
    models: Models
    control: ModelControl
    """Loading, swapping and unloading of models."""
    readiness: Readiness
    metrics: Metrics
    bodies: ByteBudget
    """Budget of request bodies in flight, in bytes."""
    replies: ByteBudget
    """Budget of replies in flight, in bytes."""
    peers: Peers | None
    """Other workers of a service of several processes."""
    failures: list[str]
    """Failures after which the service cannot answer; its server stops at the first."""
    cl100k: Cl100k | None = None
    """Decoder of OpenAI's token ids; None unless the setting `token_ids` enables it."""
    turns: Turns = field(default_factory=Turns)
    """Order in which replies are written."""
    hangs: bool = False
    """Whether an engine call is still running after the application has ended."""
    connections: list[Sized] = field(default_factory=list)
    """Open connections of each server of the application, which adds its own."""

    def __post_init__(self) -> None:
        """Set up the gauges of the models."""
        self._gauges = ModelGauges(self.metrics, self.control)

    async def refresh_metrics(self) -> str:
        """Count noted events, and update the sampled metrics; return an empty text."""
        self._gauges.refresh()
        self.metrics.refresh()
        service = self.metrics.registry
        service.ready.set(not self.readiness.known_failure)
        service.connections.set(sum(map(len, self.connections)))
        service.body_bytes_in_flight.set(self.bodies.held)
        service.reply_bytes_in_flight.set(self.replies.held)
        return ""


def state_of(app: Any) -> ServiceState:
    """Return the service state of an application."""
    state: ServiceState = app.service
    return state
