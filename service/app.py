"""HTTP application of a service: its models, routes, layers and lifespan."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Sequence

from fastapi import FastAPI

from model.artifact.manifest import Artifact
from service.api import dialects, documentation
from service.api.wire.route import ServiceExchange, direct_routes
from service.engines.contract import Engine
from service.health.readiness import Peers
from service.http.admission import Admission
from service.http.exchange import Application, ExchangeMiddleware, Turns, cors_of
from service.models.state import ServiceState, build_state
from service.models.table import Models, banner
from service.settings import Settings
from service.system.budget import releasing
from service.system.distribution import TRACING, require, version
from service.telemetry.requests import AccessLog, RequestObserver

_log = logging.getLogger("headscope")


def create_app(
    settings: Settings,
    artifacts: Sequence[Artifact],
    engines: Sequence[Engine] = (),
    peers: Peers | None = None,
) -> FastAPI:
    """Load artifacts, and return the application that serves them.

    Args:
        settings: settings of the service.
        artifacts: served artifacts, the default first.
        engines: engine of each artifact; the engines of the settings if empty.
        peers: other workers of a service of several processes.

    Raises:
        ModelError: an artifact cannot be loaded, the device does not exist, or an engine
            disagrees with PyTorch.
        ServiceError: an engine cannot be started.
        ValueError: two models have the same name, a limit exceeds a model's, or the decoder of
            token ids cannot be loaded.

    """
    return application(build_state(settings, artifacts, engines, peers))


def application(state: ServiceState) -> FastAPI:
    """Return the application that serves loaded models.

    Raises:
        ValueError: traces or hosts of pictures are configured, and their packages are not
            installed.

    """
    settings, peers, state.turns = state.settings, state.peers, Turns()
    if settings.image_hosts is not None:
        require("--image-hosts", "httpx")
        from service.http.image_fetch import ImageFetcher  # noqa: PLC0415 - needs httpx

        limits = settings.max_image_bytes, settings.image_timeout_seconds
        state.images = ImageFetcher(settings.image_hosts, *limits)
    observers = request_observers(settings)
    if not (peers and peers.index):
        introduce(settings, state.models)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for observer in observers:
                stack.callback(observer.close)
            await stack.enter_async_context(state.control.running())
            await stack.enter_async_context(
                releasing((state.bodies, state.replies), state.models.release_memory)
            )
            if peers:
                answers = {"ready": state.readiness.answer, "refresh": state.refresh_metrics}
                await stack.enter_async_context(peers.answering(answers))
            yield
        state.hangs = not state.control.loader.close()

    app = Application(
        title="Headscope",
        summary="Contextual embeddings and the attention weights of every head.",
        version=version(),
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.service = state
    dialects.install(app, settings)
    keys = settings.api_keys is not None or settings.keys_file is not None
    documentation.describe(app, keys=keys)
    app.exchanging = functools.partial(
        ExchangeMiddleware,
        routes=direct_routes(app.router.routes),
        service=state,
        admission=Admission.of(settings),
        error_reply=dialects.error_reply,
        exchange_type=ServiceExchange,
        observers=observers,
        cors=cors_of(settings),
    )
    state.metrics.http.name_routes(app.router.routes)
    return app


def introduce(settings: Settings, models: Models) -> None:
    """Log the served models, and a warning for each precision that is slow on this processor."""
    for line in banner(settings, models):
        _log.info("%s", line)
    for model in models:
        if model.precision_note:
            _log.warning("%s", model.precision_note)


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
