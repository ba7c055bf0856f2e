"""Start of a service: its models, and the state that its application has."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

from model.artifact.manifest import Artifact
from service.artifacts.footprint import footprint, report, shortage, torch_footprint
from service.artifacts.opening import export_source, open_source
from service.artifacts.repository import FIRST_VERSION, Source
from service.engines.contract import Engine
from service.health.readiness import Peers, Readiness
from service.inference.tokenization.cl100k import Cl100k
from service.models.control import ModelControl
from service.models.loading import MemoryBudget, ModelLoader
from service.models.served import ServedModel
from service.models.setup import (
    Setup,
    aliases_of,
    names_of,
    pinned_sources,
    pinned_targets,
    repository_of,
)
from service.models.start import Shared, input_limits, start_model, torch_hosts
from service.models.state import ServiceState
from service.models.table import Models
from service.settings import Settings
from service.settings.served import given_names, of_model
from service.system import machine
from service.system.budget import ByteBudget
from service.telemetry.metrics import Metrics

_log = logging.getLogger("headscope")


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
    setup = Setup(settings, repository_of(settings, flagged), frozenset(kept))
    pinned = pinned_sources(settings, setup.repository)
    budget = MemoryBudget(lambda *model: footprint(*model).total)
    served = _started(shared, budget, opened, pinned, engines)
    models = Models(served, aliases, order=[*settings.tables])
    return ServiceState(
        settings=settings,
        models=models,
        control=ModelControl(models, ModelLoader(models, budget, shared), setup),
        readiness=Readiness(models.readiness, peers),
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
