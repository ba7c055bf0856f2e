"""Start of a model: its engines, tokenizer or preprocessing, limits and health watch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from model.artifact.manifest import TARGET_TOKENIZER, TOKENIZER, Artifact
from model.artifact.vectors import TextVectors
from model.runtimes import cuda
from model.runtimes.capabilities import declared
from model.runtimes.contract import Heads, Resources
from model.runtimes.registry import check_device
from service.artifacts.opening import precision_note
from service.artifacts.repository import Source
from service.engines.contract import Engine, Pooling
from service.engines.fake import FakeEngine
from service.engines.measuring import blank_text, maps_of, measured_batches, measured_cost, texts_of
from service.engines.onnx import CUDA_CALLS, OnnxEngine
from service.engines.process import (
    IDLE_SECONDS,
    DeviceEngine,
    TorchEngine,
    TorchHosts,
    check_installed,
)
from service.engines.replicas import Replicas
from service.health.engine import EngineHealth
from service.health.golden import GoldenCheck
from service.health.live_verification import LiveVerification
from service.inference.core import Inference
from service.inference.engine_pool import EnginePool
from service.inference.tokenization.request_tokenizer import RequestTokenizer
from service.inference.tokenization.text import Tower
from service.inference.tokenization.tokenizer import Limits, TextTokenizer
from service.models.served import ServedModel
from service.scheduler.lanes import BatchLimits
from service.settings import Settings
from service.settings.model_group import ModelTable
from service.settings.served import of_model
from service.system.distribution import require
from service.system.resources import in_lower_priority
from service.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from service.inference.pictures import RequestPictures

CHARACTERS_PER_INPUT_TOKEN = 64
CHARACTERS_PER_QUEUED_TOKEN = 2
"""Maximum number of characters of a request per token of the queue's limit."""


@dataclass(frozen=True)
class Shared:
    """Settings of a service, and dependencies that all of its models share at their start."""

    settings: Settings
    metrics: Metrics
    give_up: Callable[[str], None]
    """Function that records a failure after which the service cannot answer."""
    several: bool
    """Whether there are several models, so that log lines name theirs."""
    torch: TorchHosts
    """Process in which PyTorch computes for all models."""
    idle: Callable[[], object]
    """Function that waits until this process does nothing else, before batches are measured."""


def start_model(
    source: Source, artifact: Artifact, shared: Shared, engine: Engine | None = None
) -> ServedModel:
    """Start the engine of a model, and of its vision tower if it has one, and return the model.

    The engine is the settings' if None; a given one does not compute for the vision tower.

    Raises:
        ModelError: the artifact cannot be loaded, there is no such device, or the engine
            disagrees with PyTorch.
        ServiceError: the engine cannot be started.
        ValueError: `--max-length` exceeds the model's positions.

    """
    settings = of_model(shared.settings, source.name)
    if artifact.vision is None:
        return _start_encoder(source, artifact, settings, shared, engine)
    with contextlib.ExitStack() as undo:
        named = replace(source, name=f"{source.name}:vision")
        vision = _start_encoder(named, artifact.vision, settings, shared, tower="vision")
        undo.callback(vision.close)
        model = _start_encoder(source, artifact, settings, shared, engine, tower="text")
        undo.pop_all()
    return replace(model, vision=vision)


def _start_encoder(
    source: Source,
    artifact: Artifact,
    settings: Settings,
    shared: Shared,
    engine: Engine | None = None,
    *,
    tower: Tower | None = None,
) -> ServedModel:
    """Start one encoder; arguments and errors as for `start_model`."""
    name = source.name
    artifact = with_prompts(artifact, settings.tables.get(name))
    manifest = artifact.manifest
    metrics = shared.metrics.of_model(name)
    if settings.fallback == "torch" or (settings.verify_share and manifest.static):
        check_installed(artifact)
    label = f"{name}: " if shared.several or tower else ""
    trial = GoldenCheck(artifact)
    warm = partial(_warm_up, settings, artifact, shared.idle)
    factories = {
        kind: partial(_started, start, warm)
        for kind, start in engine_factories(settings, artifact, trial, shared.torch).items()
    }
    reader = _reader(settings, artifact)
    engine = engine or factories[settings.engine]()
    limits = BatchLimits(
        settings.max_batch_tokens or engine.batch_tokens,
        settings.max_queue_tokens,
        settings.max_queue_texts,
        settings.queue_timeout_seconds,
        settings.queue_target_seconds,
        settings.batch_timeout_seconds,
    )
    live_verification = LiveVerification(
        settings.verify_share, lambda: engines.get("torch"), manifest, metrics, label
    )
    inspect = live_verification.inspect if settings.verify_share else None
    engines = EnginePool(engine, factories, limits, metrics, inspect)
    probe = blank_text(manifest.config, 1, Pooling(0, "cls"))
    give_up, fallback = shared.give_up, settings.fallback
    return ServedModel(
        name=name,
        version=source.version,
        settings=settings,
        artifact=artifact,
        inference=Inference(
            artifact,
            TextVectors.of(artifact),
            reader,
            engines,
            allow_unverified=settings.allow_unverified,
            tower=tower,
        ),
        health=EngineHealth(engines, live_verification, probe, trial, fallback, give_up, label),
        precision_note=precision_note(manifest.precision, engine.provider)
        if engine.name == "onnx"
        else None,
    )


def _reader(settings: Settings, artifact: Artifact) -> RequestTokenizer | RequestPictures:
    """Return the reader of a model's texts or pictures.

    Raises:
        ValueError: Pillow is not installed; the message says how to install it.

    """
    manifest, limits = artifact.manifest, input_limits(settings, artifact)
    if manifest.images:
        require(f"serving {artifact.folder}", "PIL")
        # the first model of pictures imports Pillow: a service of texts never does
        from service.inference.pictures import RequestPictures  # noqa: PLC0415

        return RequestPictures(manifest, limits, settings.max_image_pixels)
    target = artifact.path(TARGET_TOKENIZER) if manifest.own_target_tokenizer else None
    path, segments = artifact.path(TOKENIZER), manifest.config.segments
    return RequestTokenizer(TextTokenizer(path, manifest.sentence, limits, target, segments))


def with_prompts(artifact: Artifact, table: ModelTable | None) -> Artifact:
    """Return an artifact with the prompts of a model's table beside its own or in their place.

    Raises:
        ValueError: the default prompt does not exist, or the artifact has a chat template, which
            has its prompts inside.

    """
    if table is None or not (table.prompts or table.default_prompt is not None):
        return artifact
    sentence = artifact.manifest.sentence
    if sentence.pair_templates:
        raise ValueError("a model with a chat template takes no other prompts: leave them out")
    prompts = sentence.prompts | table.prompts
    default = sentence.default_prompt_name if table.default_prompt is None else table.default_prompt
    if default and default not in prompts:
        known = ", ".join(sorted(prompts)) or "none"
        raise ValueError(f"default-prompt {default} is not a prompt; there are: {known}")
    update = {"prompts": prompts, "default_prompt_name": default or None}
    changed = sentence.model_copy(update=update)
    return replace(artifact, manifest=artifact.manifest.model_copy(update={"sentence": changed}))


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
        threads, own = settings.threads, (settings.device_memory_bytes, settings.cuda_graphs)
        if settings.devices is None:
            device, device_id = settings.device, settings.device_id or 0
            return OnnxEngine(artifact, device, threads, device_id, *own)
        devices: Sequence[int] = range(cuda.device_count() or 1)  # without one, the start says why
        if settings.devices != "all":
            devices = [int(device) for device in settings.devices.split(",")]
        if len(devices) == 1:
            return OnnxEngine(artifact, "cuda", threads, devices[0], *own)
        check_device(artifact.manifest.runtime, "cuda")

        def start(device_id: int) -> Engine:
            resources = Resources("cuda", threads or CUDA_CALLS, device_id, *own)
            return DeviceEngine(artifact, settings.batch_timeout_seconds, resources)

        return Replicas.start(devices, start, trial)

    def torch() -> Engine:
        return TorchEngine(artifact, settings.batch_timeout_seconds, hosts)

    return {
        "onnx": lambda: in_lower_priority(lambda: _started(onnx, trial)),
        "torch": lambda: in_lower_priority(lambda: _started(torch, trial)),
        "fake": lambda: FakeEngine(artifact.manifest.config),
    }


def _started(start: Callable[[], Engine], step: Callable[[Engine], None]) -> Engine:
    """Return an engine that has taken a further step of its start; it is closed if that fails."""
    with contextlib.ExitStack() as undo:
        engine = start()
        undo.callback(engine.close)
        step(engine)
        undo.pop_all()
    return engine


def _warm_up(
    settings: Settings, artifact: Artifact, idle: Callable[[], object], engine: Engine
) -> None:
    """Warm an engine up, and measure its first batches."""
    longest, config = input_limits(settings, artifact).max_tokens, artifact.manifest.config
    batch_tokens = settings.max_batch_tokens or engine.batch_tokens
    engine.warm_up(batch_tokens, longest)
    idle()
    texts = texts_of(config)
    engine.measured = measured_batches(engine, texts, batch_tokens, longest)
    engine.cost = measured_cost(engine, texts, engine.measured, longest)
    if Heads in declared(artifact.manifest):
        engine.measured_maps = measured_batches(engine, maps_of(config), batch_tokens, longest)


def input_limits(settings: Settings, artifact: Artifact) -> Limits:
    """Return the limits of inputs: the settings, or the checkpoint's own; of pictures, their own.

    Raises:
        ValueError: `--max-length` exceeds the position table.

    """
    manifest, most = artifact.manifest, settings.max_client_batch_size
    table = manifest.config.max_position_embeddings
    if manifest.images:  # whose number of tokens is fixed
        return Limits(table, settings.max_image_bytes, most)
    tokens = settings.max_length or manifest.sentence.max_length
    if tokens > table:
        raise ValueError(
            f"--max-length {tokens} is more than the position table's {table} of {manifest.model}"
        )
    together = settings.max_request_characters
    if together is None:
        together = CHARACTERS_PER_QUEUED_TOKEN * settings.max_queue_tokens
    limits = Limits(
        tokens, settings.max_characters or CHARACTERS_PER_INPUT_TOKEN * tokens, most, together
    )
    if (decoder := manifest.decoder) is None:
        return limits
    return replace(limits, max_target_tokens=decoder.layers.max_position_embeddings)
