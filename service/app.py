"""Assembly of the application from its parts, and their lifespan."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence

from fastapi import FastAPI

from model.artifact.manifest import Artifact
from service.api import dialects
from service.api.security_schemes import describe_keys
from service.artifacts.footprint import footprint, report, shortage, torch_footprint
from service.engines.contract import Engine
from service.health.peers import Answers, Peers
from service.health.readiness import Readiness
from service.http import middleware
from service.inference.tokenization.cl100k import Cl100k
from service.serving.banner import banner
from service.serving.models import Models, aliases_of, names_of
from service.serving.start import Shared, start_model, token_limits, torch_hosts
from service.serving.state import ServiceState
from service.serving.twins import twins_of
from service.settings import Settings
from service.system import machine
from service.system.budget import ByteBudget, releasing
from service.system.distribution import TRACING, require, version
from service.telemetry.access import AccessLog
from service.telemetry.metrics import Metrics
from service.telemetry.requests import RequestObserver
from service.telemetry.routes import RouteTemplates

_log = logging.getLogger("headscope")


def create_app(
    settings: Settings,
    artifacts: Sequence[Artifact],
    engines: Sequence[Engine] = (),
    peers: Peers | None = None,
) -> FastAPI:
    """Return the application that serves artifacts.

    Args:
        settings: settings of the service.
        artifacts: served artifacts, the default first; then the artifacts of `heads_from`.
        engines: engine of each artifact; the engines of the settings if empty.
        peers: other workers of a service of several processes.

    Raises:
        ModelError: an artifact cannot be loaded, the device does not exist, or an engine
            disagrees with PyTorch.
        ServiceError: an engine cannot be started.
        ValueError: two models have the same name, a limit exceeds a model's, `heads_from` is
            useless, or the decoder of token ids cannot be loaded.

    """
    observers = request_observers(settings)
    state = build_state(settings, artifacts, engines, peers)
    if not (peers and peers.index):
        introduce(settings, state.models)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for observer in observers:
                stack.callback(observer.close)
            for model in state.models:
                model.live_verification.open()
                await stack.enter_async_context(model.watch.watching())
            await stack.enter_async_context(releasing(state.bodies, state.replies))
            if peers:
                answers: Answers = {
                    "ready": state.readiness.answer,
                    "refresh": state.refresh_metrics,
                }
                await stack.enter_async_context(peers.answering(answers))
            yield
            for model in state.models:
                await model.live_verification.close()
        finished = [model.inference.close() for model in state.models]
        state.hangs = not all(finished)

    app = FastAPI(
        title="Headscope",
        summary="Contextual embeddings and the attention weights of every head.",
        version=version(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.service = state
    dialects.install(app, settings)
    if settings.api_keys is not None or settings.keys_file is not None:
        describe_keys(app)
    middleware.install(
        app,
        settings,
        state.metrics.http,
        (state.bodies, state.replies),
        observers,
        dialects.error_response,
    )
    state.metrics.http.routes = RouteTemplates(app.router.routes)
    return app


def introduce(settings: Settings, models: Models) -> None:
    """Log the served models, and a warning for each precision that is slow on this processor."""
    for line in banner(settings, models):
        _log.info("%s", line)
    for model in models:
        if model.precision_note:
            _log.warning("%s", model.precision_note)


def build_state(
    settings: Settings,
    artifacts: Sequence[Artifact],
    engines: Sequence[Engine],
    peers: Peers | None,
) -> ServiceState:
    """Return the state of the service; see `create_app`."""
    count = len(artifacts) - len(settings.heads_from)
    names = names_of(artifacts[:count], settings.served_model_name)
    aliases = aliases_of(settings.alias, names)
    models = dict(zip(names, artifacts[:count], strict=True))
    twins = twins_of(models, artifacts[count:], settings)
    names += twins.names
    for artifact in artifacts:
        token_limits(settings, artifact)  # before anything is loaded
    cl100k = Cl100k() if settings.token_ids == "cl100k" else None  # noqa: S105 - a choice
    if settings.engine != "fake" and not (engines or (peers and peers.index)):
        tell_memory(settings, dict(zip(names, artifacts, strict=True)))
    metrics = Metrics(peers.folder if peers else None)
    metrics.service.limited(settings)

    failures: list[str] = []
    shared = Shared(settings, metrics, failures.append, len(names) > 1, torch_hosts(settings))
    with contextlib.ExitStack() as started:
        served = []
        for number, (name, artifact) in enumerate(zip(names, artifacts, strict=True)):
            engine = engines[number] if engines else None
            served.append(start_model(name, artifact, shared, engine))
            started.callback(served[-1].inference.close)
        started.pop_all()
    return ServiceState(
        settings=settings,
        models=Models(served, aliases, twins.of_models),
        readiness=Readiness({model.name: model.readiness for model in served}, peers),
        metrics=metrics,
        bodies=ByteBudget(settings.max_body_bytes_in_flight, "bodies"),
        replies=ByteBudget(settings.max_bytes_in_flight),
        peers=peers,
        failures=failures,
        cl100k=cl100k,
    )


def tell_memory(settings: Settings, artifacts: Mapping[str, Artifact]) -> None:
    """Log the memory that several models or workers need, and a warning if less is available."""
    footprints = {name: footprint(artifact, settings) for name, artifact in artifacts.items()}
    if len(footprints) > 1 or settings.workers > 1:
        torch_bytes = torch_footprint(artifacts.values(), settings)
        for line in report(footprints, settings.workers, torch_bytes):
            _log.info("%s", line)
    if warning := shortage(footprints, settings.workers, machine.available_memory()):
        _log.warning("%s", warning)


def request_observers(settings: Settings) -> list[RequestObserver]:
    """Return the observers of every request.

    Raises:
        ValueError: traces are configured, and their packages are not installed.

    """
    observers: list[RequestObserver] = []
    if settings.access_log:
        observers.append(AccessLog())
    if settings.otlp_endpoint:
        require("--otlp-endpoint", *TRACING)
        from service.telemetry.tracing import Tracing  # noqa: PLC0415 - only tracing needs its packages

        observers.append(Tracing(settings.otlp_endpoint))
    return observers
