"""The application: lifespan and wiring only."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import AsyncIterator, Callable

from fastapi import FastAPI

from model.artifact import TOKENIZER, Artifact
from service import problems
from service.backends import Backends
from service.batching import BatchLimits
from service.engines.base import Engine
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.engines.torch import TorchEngine
from service.metrics import Metrics
from service.middleware import RequestMiddleware
from service.predictor import Bounds, Predictor
from service.routes import attention, dashboard, encode, ops, verify
from service.settings import Settings
from service.tokenizer import Limits, TextTokenizer
from service.workers.peers import Peers

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
        ModelError: the artifact cannot be loaded, or the device is not there.
        ServiceError: the engine cannot be started.

    """
    factories = engine_factories(settings, artifact)
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
        others = {name: factories[name] for name in ("onnx", "torch") if name != engine.name}
        limits = BatchLimits(batch_tokens, settings.max_queue_tokens)
        bounds = Bounds(
            settings.max_client_batch_size,
            settings.max_response_bytes,
            settings.max_bytes_in_flight,
        )
        backends = Backends(engine, others, limits, metrics)
        app.state.predictor = Predictor(manifest, tokenizer, backends, bounds)
        async with peers.answering(ops.answers(app.state)) if peers else contextlib.nullcontext():
            yield
        app.state.predictor.close()

    app = FastAPI(
        title="Headscope",
        summary="Contextual embeddings and the attention weights of every head.",
        version=importlib.metadata.version("headscope"),
        lifespan=lifespan,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    state = app.state
    state.settings, state.artifact, state.engine = settings, artifact, engine
    state.tokenizer, state.metrics = tokenizer, metrics
    state.peers, state.draining = peers, False
    state.info = ops.describe(state)
    for routes in (encode, attention, verify, ops, dashboard):
        app.include_router(routes.router)
    problems.install(app)
    app.add_middleware(RequestMiddleware, metrics=metrics, max_body_bytes=settings.max_body_bytes)
    return app


def engine_factories(settings: Settings, artifact: Artifact) -> dict[str, Callable[[], Engine]]:
    """How each engine is started."""
    return {
        "onnx": lambda: OnnxEngine(
            artifact,
            settings.device,
            settings.threads,
            settings.device_id,
            settings.device_memory_bytes,
        ),
        "torch": lambda: TorchEngine(artifact, settings.torch_timeout_seconds, settings.threads),
        "fake": lambda: FakeEngine(artifact.manifest.config),
    }


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
