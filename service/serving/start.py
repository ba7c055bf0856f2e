"""Start of a served model: its engines, tokenizer, limits and health watch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from model.artifact.manifest import TARGET_TOKENIZER, TOKENIZER, Artifact
from model.artifact.vectors import TextVectors
from service.artifacts.precision import precision_note
from service.engines.contract import Engine
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.engines.torch import TorchEngine, check_installed
from service.engines.torch_host import IDLE_SECONDS, TorchHosts
from service.health.golden import GoldenCheck
from service.health.live_verification import LiveVerification
from service.health.readiness import ModelReadiness
from service.health.watch import Watch
from service.inference.core import Inference
from service.inference.engine_pool import EnginePool
from service.inference.tokenization.tokenizer import Limits, TextTokenizer
from service.inference.tokenization.tokenizing import CHARACTERS_PER_TOKEN, RequestLimits
from service.measuring.batches import maps_of, measured_batches, texts_of
from service.scheduler.admission import BatchLimits
from service.serving.models import ServedModel
from service.settings import Settings
from service.system.resources import in_lower_priority
from service.telemetry.metrics import Metrics

CHARACTERS_PER_INPUT_TOKEN = 64


@dataclass(frozen=True)
class Shared:
    """Dependencies that all models of a service share at their start."""

    settings: Settings
    metrics: Metrics
    give_up: Callable[[str], None]
    """Function that records a failure after which the service cannot answer."""
    several: bool
    """Whether there are several models, so that log lines name theirs."""
    torch: TorchHosts
    """Process in which PyTorch computes for all models."""


def start_model(
    name: str, artifact: Artifact, shared: Shared, engine: Engine | None = None
) -> ServedModel:
    """Start the engine of a model, and return the model.

    Args:
        name: name of the model.
        artifact: artifact of the model.
        shared: dependencies that all models share.
        engine: engine that computes; the engine of the settings if None.

    Raises:
        ModelError: the artifact cannot be loaded, there is no such device, or the engine
            disagrees with PyTorch.
        ServiceError: the engine cannot be started.
        ValueError: `--max-length` exceeds the model's positions.

    """
    settings, metrics, manifest = shared.settings, shared.metrics.of_model(name), artifact.manifest
    if settings.fallback == "torch" or (settings.verify_share and manifest.foreign):
        check_installed(artifact)
    label = f"{name}: " if shared.several else ""
    trial = GoldenCheck(artifact)
    limits = token_limits(settings, artifact)
    factories = engine_factories(settings, artifact, trial, shared.torch)
    factories = {kind: warmed(start, settings, artifact) for kind, start in factories.items()}
    target = artifact.path(TARGET_TOKENIZER) if manifest.own_target_tokenizer else None
    tokenizer = TextTokenizer(artifact.path(TOKENIZER), manifest.sentence, limits, target)
    vectors = TextVectors.of(artifact)
    engine = engine or factories[settings.engine]()
    batch_tokens = settings.max_batch_tokens or engine.batch_tokens
    queue_limits = batch_limits(settings, batch_tokens)
    metrics.serves(engine, manifest.precision, queue_limits, limits.max_tokens)
    live_verification = LiveVerification(
        settings.verify_share, lambda: engines.get("torch"), manifest, metrics, label
    )
    engines = EnginePool(
        engine,
        factories,
        queue_limits,
        metrics,
        live_verification.inspect if settings.verify_share else None,
    )
    probe_layer = manifest.config.num_hidden_layers if manifest.foreign else 0
    readiness = ModelReadiness(engines, live_verification, probe_layer)
    return ServedModel(
        name=name,
        artifact=artifact,
        inference=Inference(
            artifact,
            vectors,
            tokenizer,
            engines,
            request_limits(settings),
            allow_unverified=settings.allow_unverified,
        ),
        readiness=readiness,
        live_verification=live_verification,
        watch=Watch(readiness, trial, settings.fallback, shared.give_up, metrics, label),
        precision_note=precision_note(manifest.precision, engine.provider)
        if engine.name == "onnx"
        else None,
    )


def torch_hosts(settings: Settings) -> TorchHosts:
    """Return the PyTorch process of all models; it never ends if it is the service's own engine."""
    idle_seconds = None if settings.engine == "torch" else IDLE_SECONDS
    return TorchHosts(settings.threads, idle_seconds)


def engine_factories(
    settings: Settings,
    artifact: Artifact,
    trial: Callable[[Engine], None],
    hosts: TorchHosts,
) -> dict[str, Callable[[], Engine]]:
    """Return start functions by engine name; real engines pass a trial before they serve."""

    def onnx() -> Engine:
        return OnnxEngine(
            artifact,
            settings.device,
            settings.threads,
            settings.device_id,
            settings.device_memory_bytes,
        )

    def torch() -> Engine:
        return TorchEngine(artifact, settings.batch_timeout_seconds, hosts)

    def tried(start: Callable[[], Engine]) -> Engine:
        with contextlib.ExitStack() as undo:
            engine = start()
            undo.callback(engine.close)
            trial(engine)
            undo.pop_all()
        return engine

    return {
        "onnx": lambda: in_lower_priority(lambda: tried(onnx)),
        "torch": lambda: in_lower_priority(lambda: tried(torch)),
        "fake": lambda: FakeEngine(artifact.manifest.config),
    }


def warmed(
    start: Callable[[], Engine], settings: Settings, artifact: Artifact
) -> Callable[[], Engine]:
    """Return a function that starts an engine, warms it up and measures its first batches."""
    longest = token_limits(settings, artifact).max_tokens
    config = artifact.manifest.config

    def started() -> Engine:
        with contextlib.ExitStack() as undo:
            engine = start()
            undo.callback(engine.close)
            batch_tokens = settings.max_batch_tokens or engine.batch_tokens
            engine.warm_up(batch_tokens, longest)
            engine.measured = measured_batches(engine, texts_of(config), batch_tokens, longest)
            if not artifact.manifest.foreign:
                maps = measured_batches(engine, maps_of(config), batch_tokens, longest)
                engine.measured_maps = maps
            undo.pop_all()
        return engine

    return started


def batch_limits(settings: Settings, batch_tokens: int) -> BatchLimits:
    """Return the limits of a queue and its batches."""
    return BatchLimits(
        batch_tokens,
        settings.max_queue_tokens,
        settings.max_queue_texts,
        settings.queue_timeout_seconds,
        settings.queue_target_seconds,
        settings.batch_timeout_seconds,
    )


def request_limits(settings: Settings) -> RequestLimits:
    """Return the limits of a request."""
    characters = settings.max_request_characters
    if characters is None:
        characters = CHARACTERS_PER_TOKEN * settings.max_queue_tokens // 2
    return RequestLimits(settings.max_client_batch_size, characters)


def token_limits(settings: Settings, artifact: Artifact) -> Limits:
    """Return the limits of an input: the settings, or the checkpoint's own.

    Raises:
        ValueError: `--max-length` exceeds the position table.

    """
    table = artifact.manifest.config.max_position_embeddings
    tokens = settings.max_length or artifact.manifest.sentence.max_length
    if tokens > table:
        raise ValueError(
            f"--max-length {tokens} is more than the position table's {table} "
            f"of {artifact.manifest.model}"
        )
    return Limits(tokens, settings.max_characters or CHARACTERS_PER_INPUT_TOKEN * tokens)
