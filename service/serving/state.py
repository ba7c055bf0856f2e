"""The state of one serving process, as the application, its routes and its server share it."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass, field

from fastapi import FastAPI

from service.health.peers import Peers
from service.health.readiness import Readiness
from service.http.turns import Turns
from service.inference.tokenization.cl100k import Cl100k
from service.serving.models import Models
from service.settings import Settings
from service.system.budget import ByteBudget
from service.telemetry.metrics import Metrics


@dataclass
class ServiceState:
    """What all models of a service share, and how it is."""

    settings: Settings
    models: Models
    readiness: Readiness
    metrics: Metrics
    bodies: ByteBudget
    """Bytes of all requests' bodies in flight."""
    replies: ByteBudget
    """Bytes of all replies in flight."""
    peers: Peers | None
    """The other workers of a service of several processes."""
    give_up: Callable[[str], None]
    """Ends the process, and is told why; whoever runs the application sets it."""
    cl100k: Cl100k | None = None
    """Decoder of OpenAI's token ids; None unless the setting `token_ids` asks for it."""
    turns: Turns = field(default_factory=Turns)
    """Order in which replies are written."""
    hangs: bool = False
    """Whether a call still runs in an engine though the application has ended."""
    connections: Sized = ()
    """Open connections; whoever runs the application sets them."""

    async def refresh_metrics(self) -> str:
        """Bring those metrics up to date that are not kept as things happen; nothing to answer."""
        for model in self.models:
            metrics, texts = self.metrics.of_model(model.name), model.queued_texts
            for lane, tokens in model.queued_tokens.items():
                metrics.queued(lane, tokens, texts[lane])
        service = self.metrics.service
        service.ready.set(not self.readiness.known_failure)
        service.connections.set(len(self.connections))
        service.body_bytes.set(self.bodies.held)
        service.reply_bytes.set(self.replies.held)
        service.refresh_memory()
        return ""


def state_of(app: FastAPI) -> ServiceState:
    """The state of the service that an application is."""
    state: ServiceState = app.state.service
    return state
