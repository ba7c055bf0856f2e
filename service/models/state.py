"""State of a serving process, shared by the application, its routes and its server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from service.health.readiness import Peers, Readiness
from service.http.turns import Turns
from service.inference.tokenization.cl100k import Cl100k
from service.models.control import ModelControl, versions
from service.models.served import ServedModel
from service.models.table import Models
from service.scheduler.lanes import BatchLimits
from service.settings import Settings
from service.system.budget import ByteBudget
from service.telemetry.metrics import Metrics

if TYPE_CHECKING:  # which needs httpx
    from service.http.image_fetch import ImageFetcher


class ModelGauges:
    """Gauges of the models of a process."""

    def __init__(self, metrics: Metrics, control: ModelControl) -> None:
        self._metrics = metrics
        self._control = control
        self._names: set[str] = set()
        """Names of the models in memory at the last refresh."""

    def refresh(self) -> None:
        """Update the gauges of the models in memory, and set the gauges of unloaded models to 0."""
        by_name: dict[str, list[ServedModel]] = {}
        size = 0
        for model in self._control.loader.in_memory:
            for tower in model.towers:
                by_name.setdefault(tower.name, []).append(tower)
            size += self._control.loader.budget.of(model.artifact, model.settings)
        self._metrics.registry.models_bytes.set(size)
        for name, loaded in by_name.items():
            self._refresh(name, loaded)
        for name in self._names.difference(by_name):
            self._metrics.of_model(name).unloaded()
        self._names = set(by_name)
        served = [model for loaded in by_name.values() for model in loaded]
        self._metrics.engines.set({_engine(model): 1 for model in served})
        self._metrics.versions.set(self._versions())

    def _refresh(self, name: str, loaded: Sequence[ServedModel]) -> None:
        """Update the gauges of a name, of which several versions may be in memory."""
        metrics = self._metrics.of_model(name)
        tokens, texts = Counter[str](), Counter[str]()
        for model in loaded:
            tokens.update(model.queued_tokens)
            texts.update(model.queued_texts)
        for lane, count in tokens.items():
            metrics.queued(lane, count, texts[lane])
        engines = [model.inference.engines.default.engine for model in loaded]
        metrics.on_devices([device for engine in engines for device in engine.devices])
        limits = [model.inference.engines.limits for model in loaded]
        metrics.limited(
            sum(engine.concurrency for engine in engines),
            BatchLimits(
                max(limit.max_batch_tokens for limit in limits),
                sum(limit.max_queue_tokens for limit in limits),
                sum(limit.max_queue_texts for limit in limits),
            ),
            max(model.inference.limits.max_tokens for model in loaded),
        )

    def _versions(self) -> Counter[tuple[str, ...]]:
        """Return the number of versions by name, version, fingerprint and state."""
        counts = Counter[tuple[str, ...]]()
        for one in versions(self._control, ()):
            counts[one.name, one.version, one.fingerprint or "", one.state] += 1
        for target in self._control.loads.targets:
            counts[target.name, target.version or "", "", "loading"] += 1
        return counts


def _engine(model: ServedModel) -> tuple[str, ...]:
    engine = model.inference.engines.default.engine
    kernels = ",".join(engine.attention_kernels)
    return engine.name, engine.provider, kernels, model.artifact.manifest.precision, model.name


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
    images: ImageFetcher | None = None
    """Fetches of pictures by address; None without the setting `image_hosts`."""
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
