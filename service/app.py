"""The application: its parts, put together, and their lifespan."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from fastapi import FastAPI

from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.vectors import TextVectors
from service.api import dialects
from service.distribution import TRACING, require, version
from service.engines.contract import Engine
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.engines.torch import TorchEngine, check_installed
from service.health.golden import GoldenCheck
from service.health.live_verification import LiveVerification
from service.health.peers import Answers, Peers
from service.health.readiness import Readiness
from service.health.watch import Watch
from service.http import middleware
from service.http.budget import ByteBudget, releasing
from service.inference.core import Inference
from service.inference.engine_pool import EnginePool
from service.inference.tokenizer import Limits, TextTokenizer
from service.inference.tokenizing import CHARACTERS_PER_TOKEN, RequestLimits
from service.precision import precision_note
from service.scheduler.admission import BatchLimits
from service.settings import Settings
from service.state import ServiceState
from service.system import in_lower_priority
from service.telemetry.access import AccessLog
from service.telemetry.metrics import Metrics
from service.telemetry.requests import RequestObserver

_log = logging.getLogger("headscope")

CHARACTERS_PER_INPUT_TOKEN = 64


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
        ModelError: the artifact cannot be loaded, the device is not there, or the engine
            disagrees with PyTorch.
        ServiceError: the engine cannot be started.

    """
    observers = request_observers(settings)
    foreign = artifact.manifest.foreign
    if settings.fallback == "torch" or (settings.verify_share and foreign):
        check_installed(artifact)
    trial = GoldenCheck(artifact)
    state = build_state(settings, artifact, trial, engine, peers)
    engines, readiness = state.inference.engines, state.readiness
    if state.precision_note and not (peers and peers.index):
        _log.warning("%s", state.precision_note)

    def give_up(why: str) -> None:
        state.give_up(why)

    watch = Watch(engines, readiness, trial, settings.fallback, give_up, state.metrics)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        state.live_verification.open()
        async with contextlib.AsyncExitStack() as stack:
            for observer in observers:
                stack.callback(observer.close)
            await stack.enter_async_context(watch.watching())
            await stack.enter_async_context(releasing(state.bodies, state.replies))
            if peers:
                answers: Answers = {"ready": readiness.answer, "refresh": state.refresh_metrics}
                await stack.enter_async_context(peers.answering(answers))
            yield
            await state.live_verification.close()
        state.hangs = not state.inference.close()

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
    middleware.install(
        app, settings, state.metrics, state.bodies, observers, dialects.error_response
    )
    return app


def build_state(
    settings: Settings,
    artifact: Artifact,
    trial: Callable[[Engine], None],
    engine: Engine | None,
    peers: Peers | None,
) -> ServiceState:
    """The parts of the service; see `create_app`."""
    manifest, vectors = artifact.manifest, TextVectors.of(artifact)
    factories = engine_factories(settings, artifact, trial)
    engine = engine or factories[settings.engine]()
    limits = token_limits(settings, artifact)
    tokenizer = TextTokenizer(artifact.path(TOKENIZER), manifest.sentence, limits)
    batch_tokens = settings.max_batch_tokens or engine.batch_tokens
    engine.warm_up(batch_tokens, limits.max_tokens)
    metrics = Metrics(peers.folder if peers else None)
    metrics.engine.labels(engine.name, engine.provider, manifest.precision, manifest.model).set(1)
    live_verification = LiveVerification(
        settings.verify_share, lambda: engines.get("torch"), manifest.precision, metrics
    )
    engines = EnginePool(
        engine,
        factories,
        batch_limits(settings, batch_tokens),
        metrics,
        live_verification.inspect if settings.verify_share else None,
    )
    probe_layer = manifest.config.num_hidden_layers if manifest.foreign else 0
    return ServiceState(
        settings=settings,
        artifact=artifact,
        inference=Inference(manifest, vectors, tokenizer, engines, request_limits(settings)),
        readiness=Readiness(engines, live_verification, peers, probe_layer),
        live_verification=live_verification,
        metrics=metrics,
        bodies=ByteBudget(settings.max_body_bytes_in_flight, "bodies"),
        replies=ByteBudget(settings.max_bytes_in_flight),
        peers=peers,
        give_up=_log.critical,
        precision_note=precision_note(manifest.precision, engine.provider)
        if engine.name == "onnx"
        else None,
    )


def request_observers(settings: Settings) -> list[RequestObserver]:
    """The observers of every request.

    Raises:
        ValueError: traces are asked for, and what sends them is not installed.

    """
    observers: list[RequestObserver] = []
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
        "onnx": lambda: in_lower_priority(lambda: tried(onnx)),
        "torch": lambda: in_lower_priority(lambda: tried(torch)),
        "fake": lambda: FakeEngine(artifact.manifest.config),
    }


def batch_limits(settings: Settings, batch_tokens: int) -> BatchLimits:
    """The bounds of a queue and its batches."""
    return BatchLimits(
        batch_tokens,
        settings.max_queue_tokens,
        settings.max_queue_texts,
        settings.queue_timeout_seconds,
        settings.queue_target_seconds,
        settings.batch_timeout_seconds,
    )


def request_limits(settings: Settings) -> RequestLimits:
    """The limits of one request."""
    characters = settings.max_request_characters
    if characters is None:
        characters = CHARACTERS_PER_TOKEN * settings.max_queue_tokens // 2
    return RequestLimits(settings.max_client_batch_size, characters)


def token_limits(settings: Settings, artifact: Artifact) -> Limits:
    """The limits of one input: the setting, or the checkpoint's own.

    Raises:
        ValueError: the setting exceeds the position table.

    """
    table = artifact.manifest.config.max_position_embeddings
    tokens = settings.max_length or artifact.manifest.sentence.max_length
    if tokens > table:
        raise ValueError(f"max_length {tokens} is more than the position table's {table}")
    return Limits(tokens, settings.max_characters or CHARACTERS_PER_INPUT_TOKEN * tokens)
