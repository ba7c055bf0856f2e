"""Start of a model: its engine, tokenizer, limits and health watch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from model.artifact.manifest import TARGET_TOKENIZER, TOKENIZER, Artifact
from model.artifact.vectors import TextVectors
from service.artifacts.precision import precision_note
from service.artifacts.repository import Source
from service.engines.contract import Engine
from service.engines.torch import check_installed
from service.engines.torch_host import TorchHosts
from service.health.golden import GoldenCheck
from service.health.live_verification import LiveVerification
from service.health.readiness import ModelReadiness
from service.health.watch import Watch
from service.inference.core import Inference
from service.inference.engine_pool import EnginePool
from service.inference.tokenization.tokenizer import TextTokenizer
from service.models.engine_start import engine_factories, warmed
from service.models.limits import batch_limits, request_limits, token_limits
from service.models.served import ServedModel
from service.settings import Settings
from service.settings.model_table import ModelTable
from service.settings.of_model import of_model
from service.telemetry.metrics import Metrics


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
    """Start the engine of a model, and return the model.

    Args:
        source: name and version of the model.
        artifact: artifact of the model.
        shared: dependencies that all models share.
        engine: engine that computes; the engine of the settings if None.

    Raises:
        ModelError: the artifact cannot be loaded, there is no such device, or the engine
            disagrees with PyTorch.
        ServiceError: the engine cannot be started.
        ValueError: `--max-length` exceeds the model's positions.

    """
    name = source.name
    settings = of_model(shared.settings, name)
    artifact = with_prompts(artifact, settings.tables.models.get(name))
    manifest = artifact.manifest
    metrics = shared.metrics.of_model(name)
    if settings.fallback == "torch" or (settings.verify_share and manifest.foreign):
        check_installed(artifact)
    label = f"{name}: " if shared.several else ""
    trial = GoldenCheck(artifact)
    limits = token_limits(settings, artifact)
    factories = engine_factories(settings, artifact, trial, shared.torch)
    factories = {
        kind: warmed(start, settings, shared.idle, artifact) for kind, start in factories.items()
    }
    target = artifact.path(TARGET_TOKENIZER) if manifest.own_target_tokenizer else None
    tokenizer = TextTokenizer(artifact.path(TOKENIZER), manifest.sentence, limits, target)
    vectors = TextVectors.of(artifact)
    engine = engine or factories[settings.engine]()
    batch_tokens = settings.max_batch_tokens or engine.batch_tokens
    queue_limits = batch_limits(settings, batch_tokens)
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
    readiness = ModelReadiness(engines, live_verification, manifest.state_layers[0])
    return ServedModel(
        name=name,
        version=source.version,
        settings=settings,
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
