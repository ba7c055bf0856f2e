"""State of a serving process, which its application, routes and server share, and its start."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from model.artifact.manifest import Artifact
from service.artifacts.footprint import footprint, report, shortage, torch_footprint
from service.artifacts.opening import export_source, open_source
from service.artifacts.repository import FIRST_VERSION, Source
from service.engines.contract import Engine
from service.health.readiness import Peers, Readiness
from service.inference.tokenization.inputs import Cl100k
from service.models.control import ModelControl
from service.models.loading import MemoryBudget, ModelLoader
from service.models.served import ServedModel
from service.models.setup import (
    aliases_of,
    names_of,
    pinned_sources,
    pinned_targets,
    repository_of,
)
from service.models.start import Shared, input_limits, start_model, torch_hosts
from service.models.table import Models
from service.settings import Settings
from service.settings.served import given_names, of_model
from service.system import machine
from service.system.budget import ByteBudget
from service.telemetry.metrics import Metrics
from service.telemetry.registry import Sample

if TYPE_CHECKING:  # which need the web framework and httpx
    from service.http.exchange import Turns
    from service.http.image_fetch import ImageFetcher

_log = logging.getLogger("headscope")


def model_samples(control: ModelControl) -> Iterator[Sample]:
    """Yield the gauges of the models in memory, and of the states of their versions."""
    for model in control.loader.in_memory:
        for tower in model.towers:
            yield from _samples_of(tower)
    for one in control.versions(()):
        yield "model_versions", (one.name, one.version, one.fingerprint or "", one.state), 1
    for load in control.loads.values():
        name, version = load.target.name, load.target.version or ""
        yield "model_versions", (name, version, "", "loading"), 1


def _samples_of(model: ServedModel) -> Iterator[Sample]:
    """Yield the gauges of a model or tower."""
    name, pool, manifest = model.name, model.inference.engines, model.artifact.manifest
    limits, engine = pool.limits, pool.default.engine
    for lane in pool.default.lanes.values():
        yield "queue_tokens", (name, lane.name), lane.queued_tokens
        yield "queue_texts", (name, lane.name), lane.queued_texts
        yield "queue_tokens_limit", (name, lane.name), limits.max_queue_tokens
        yield "queue_texts_limit", (name, lane.name), limits.max_queue_texts
    for device in engine.devices:
        yield "device_up", (name, str(device.id)), device.state == "serving"
        yield "device_queued_tokens", (name, str(device.id)), device.queued_tokens
    yield "batch_tokens_limit", (name,), limits.max_batch_tokens
    yield "input_tokens_limit", (name,), model.inference.limits.max_tokens
    yield "engine_calls_limit", (name,), engine.concurrency
    yield "degraded", (name,), pool.stand_in is not None
    for kind, difference in model.health.live_verification.worst.items():
        yield "live_max_abs_diff", (name, kind), difference
    kernels = ",".join(engine.attention_kernels)
    yield "engine_info", (engine.name, engine.provider, kernels, manifest.precision, name), 1


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
    turns: Turns = field(init=False)
    """Order in which replies are written, once the application is there."""
    hangs: bool = False
    """Whether an engine call is still running after the application has ended."""
    connections: list[Sized] = field(default_factory=list)
    """Open connections of each server of the application, which adds its own."""

    async def refresh_metrics(self) -> str:
        """Count noted events, and update the sampled metrics; return an empty text."""
        self.metrics.refresh()
        service, loader = self.metrics.registry, self.control.loader
        service.sample(model_samples(self.control))
        sizes = (loader.budget.of(one.artifact, one.settings) for one in loader.in_memory)
        service.models_bytes.set(sum(sizes))
        service.ready.set(not self.readiness.known_failure)
        service.connections.set(sum(map(len, self.connections)))
        service.body_bytes_in_flight.set(self.bodies.held)
        service.reply_bytes_in_flight.set(self.replies.held)
        return ""


def state_of(app: Any) -> ServiceState:
    """Return the service state of an application."""
    state: ServiceState = app.service
    return state


def build_state(
    settings: Settings,
    artifacts: Sequence[Artifact],
    engines: Sequence[Engine] = (),
    peers: Peers | None = None,
    idle: Callable[[], object] = lambda: None,
) -> ServiceState:
    """Start the models of a service, and return its state; see `create_app` and `Shared.idle`."""
    names = names_of(artifacts, given_names(settings))
    aliases = aliases_of(settings, [*names, *settings.tables])
    for name, artifact in zip(names, artifacts, strict=True):
        input_limits(of_model(settings, name), artifact)  # before anything is loaded
    cl100k = Cl100k() if settings.token_ids == "cl100k" else None  # noqa: S105 - a choice
    if settings.engine != "fake" and not (engines or (peers and peers.index)):
        log_memory(settings, dict(zip(names, artifacts, strict=True)))
    metrics = Metrics(peers.folder if peers else None)
    metrics.limited(settings)

    failures: list[str] = []
    several = len(names) > 1 or settings.models is not None or bool(settings.tables)
    hosts = torch_hosts(settings)
    shared = Shared(settings, metrics, failures.append, several, hosts, idle)
    opened = [
        (Source(name, FIRST_VERSION, artifact.folder), artifact)
        for name, artifact in zip(names, artifacts, strict=True)
    ]
    flagged = () if settings.tables else tuple(source for source, _ in opened)
    kept = [*names, *(target.name for target in pinned_targets(settings))]
    repository = repository_of(settings, flagged)
    pinned = pinned_sources(settings, repository)
    budget = MemoryBudget(lambda *model: footprint(*model).total)
    served = _started(shared, budget, opened, pinned, engines)
    models = Models(served, aliases, order=[*settings.tables])
    return ServiceState(
        settings=settings,
        models=models,
        control=ModelControl(
            models, ModelLoader(models, budget, shared), settings, repository, frozenset(kept)
        ),
        readiness=Readiness(models.health, peers),
        metrics=metrics,
        bodies=ByteBudget(settings.max_body_bytes_in_flight, "bodies"),
        replies=ByteBudget(settings.max_bytes_in_flight),
        peers=peers,
        failures=failures,
        cl100k=cl100k,
    )


def _started(
    shared: Shared,
    budget: MemoryBudget,
    opened: Sequence[tuple[Source, Artifact]],
    pinned: Sequence[Source],
    engines: Sequence[Engine],
) -> list[ServedModel]:
    """Start models; if one cannot be started, close the others.

    `engines` has one for each opened model, or is empty for the engine of the settings.
    """
    served: list[ServedModel] = []
    with contextlib.ExitStack() as started:

        def add(source: Source, artifact: Artifact, engine: Engine | None) -> None:
            budget.to_evict(artifact, of_model(shared.settings, source.name), served, ())
            served.append(start_model(source, artifact, shared, engine))
            started.callback(served[-1].close)

        for number, (source, artifact) in enumerate(opened):
            add(source, artifact, engines[number] if engines else None)
        for source in pinned:
            cached = open_source(shared.settings, source)
            add(source, cached or export_source(shared.settings, source), None)
        started.pop_all()
    return served


def log_memory(settings: Settings, artifacts: Mapping[str, Artifact]) -> None:
    """Log the memory that several models or workers need, and a warning if less is available."""
    footprints = {
        name: footprint(artifact, of_model(settings, name)) for name, artifact in artifacts.items()
    }
    if len(footprints) > 1 or settings.workers > 1:
        torch_bytes = torch_footprint(artifacts.values(), settings)
        for line in report(footprints, settings.workers, torch_bytes):
            _log.info("%s", line)
    if warning := shortage(footprints, settings.workers, machine.available_memory()):
        _log.warning("%s", warning)
