"""The application: lifespan and wiring only."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from fastapi import FastAPI

from model.artifact.manifest import TOKENIZER, Artifact
from service.api import dashboard
from service.api import operations as ops
from service.api.native import attention, encode, verify
from service.distribution import TRACING, require, version
from service.engines.contract import Engine
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.engines.torch import TorchEngine, check_installed
from service.health.golden import GoldenCheck
from service.health.peers import Peers
from service.health.sampling import Sampling
from service.health.watch import Watch
from service.http import middleware as layers
from service.http import problems
from service.inference.core import Bounds, Predictor
from service.inference.engine_pool import Backends
from service.inference.tokenizer import Limits, TextTokenizer
from service.scheduler.admission import BatchLimits
from service.settings import Settings
from service.telemetry.access import AccessLog
from service.telemetry.metrics import Metrics
from service.telemetry.requests import ExchangeMiddleware, ExchangeObserver

_log = logging.getLogger("headscope")

CHARACTERS_PER_TOKEN = 64


def create_app(
    settings: Settings,
    artifact: Artifact,
    engine: Engine | None = None,
    peers: Peers | None = None,
) -> FastAPI:
    """The service over one artifact.

    Args:
        settings: every choice.
        artifact: what is served.
        engine: computes; the one that the settings name when None.
        peers: the other workers of a service of several processes.

    Raises:
        ModelError: the artifact cannot be loaded, the device is not there, or the engine says
            other than PyTorch.
        ServiceError: the engine cannot be started.

    """
    observers = exchange_observers(settings)
    if settings.fallback == "torch":
        check_installed()
    trial = GoldenCheck(artifact)
    factories = engine_factories(settings, artifact, trial)
    engine = engine or factories[settings.engine]()
    manifest = artifact.manifest
    tokenizer = TextTokenizer(
        artifact.path(TOKENIZER), manifest.sentence, token_limits(settings, artifact)
    )
    batch_tokens = settings.max_batch_tokens or engine.batch_tokens
    engine.warm_up(batch_tokens, tokenizer.limits.max_tokens)
    metrics = Metrics(peers.folder if peers else None)
    metrics.engine.labels(engine.name, engine.provider, manifest.precision, manifest.model).set(1)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        bounds = Bounds(
            settings.max_client_batch_size,
            settings.max_response_bytes,
            settings.max_bytes_in_flight,
        )
        sampling = Sampling(
            settings.verify_share, lambda: backends.get("torch"), manifest.precision, metrics
        )
        backends = Backends(
            engine,
            factories,
            batch_limits(settings, batch_tokens),
            metrics,
            sampling.inspect if settings.verify_share else None,
        )
        watch = Watch(backends, trial, settings.fallback, app.state.give_up, metrics)
        app.state.predictor = Predictor(manifest, tokenizer, backends, bounds)
        app.state.sampling = sampling
        async with contextlib.AsyncExitStack() as stack:
            for observer in observers:
                stack.callback(observer.close)
            await stack.enter_async_context(watch.watching())
            if peers:
                await stack.enter_async_context(peers.answering(ops.answers(app.state)))
            yield
            await sampling.close()
        app.state.hangs = not app.state.predictor.close()

    app = FastAPI(
        title="Headscope",
        summary="Contextual embeddings and the attention weights of every head.",
        version=version(),
        lifespan=lifespan,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    state = app.state
    state.settings, state.artifact, state.engine = settings, artifact, engine
    state.tokenizer, state.metrics = tokenizer, metrics
    state.peers, state.draining = peers, False
    state.give_up = _log.critical
    """What ends the process; whoever runs the application says how."""
    state.hangs = False
    """Whether a call still runs in an engine though the application has ended."""
    state.info = ops.describe(state)
    for routes in (encode, attention, verify, ops, dashboard):
        app.include_router(routes.router)
    problems.install(app)
    layers.install(app, settings, metrics)
    if observers:
        app.add_middleware(ExchangeMiddleware, observers=observers)
    return app


def exchange_observers(settings: Settings) -> list[ExchangeObserver]:
    """Who is told of every request.

    Raises:
        ValueError: traces are asked for, and what sends them is not installed.

    """
    observers: list[ExchangeObserver] = []
    if settings.access_log:
        observers.append(AccessLog())
    if settings.otlp_endpoint:
        require("otlp_endpoint", *TRACING)
        from service.telemetry.tracing import Tracing  # noqa: PLC0415 - nobody else needs its packages

        observers.append(Tracing(settings.otlp_endpoint))
    return observers


def engine_factories(
    settings: Settings, artifact: Artifact, trial: Callable[[Engine], None]
) -> dict[str, Callable[[], Engine]]:
    """How each engine is started; one that answers for a model is tried before it serves."""

    def onnx() -> Engine:
        return OnnxEngine(
            artifact,
            settings.device,
            settings.threads,
            settings.device_id,
            settings.device_memory_bytes,
        )

    def torch() -> Engine:
        return TorchEngine(artifact, settings.batch_timeout_seconds, settings.threads)

    def tried(start: Callable[[], Engine]) -> Engine:
        engine = start()
        try:
            trial(engine)
        except BaseException:
            engine.close()
            raise
        return engine

    return {
        "onnx": lambda: tried(onnx),
        "torch": lambda: tried(torch),
        "fake": lambda: FakeEngine(artifact.manifest.config),
    }


def batch_limits(settings: Settings, batch_tokens: int) -> BatchLimits:
    """The bounds of a queue and its batches."""
    return BatchLimits(
        batch_tokens,
        settings.max_queue_tokens,
        settings.max_queue_texts,
        settings.queue_timeout_seconds,
        settings.batch_timeout_seconds,
    )


def token_limits(settings: Settings, artifact: Artifact) -> Limits:
    """The limits of one input: the setting, or the checkpoint's own.

    Raises:
        ValueError: the setting exceeds the position table.

    """
    table = artifact.manifest.config.max_position_embeddings
    tokens = settings.max_length or artifact.manifest.sentence.max_length
    if tokens > table:
        raise ValueError(f"max_length {tokens} is more than the position table's {table}")
    return Limits(tokens, settings.max_characters or CHARACTERS_PER_TOKEN * tokens)
