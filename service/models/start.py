"""Start of the served models: engines, tokenizers, limits and health watches."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from model.artifact.manifest import TARGET_TOKENIZER, TOKENIZER, Artifact
from model.artifact.vectors import TextVectors
from model.runtimes.capabilities import HeadMaps, declared
from service.artifacts.footprint import footprint, report, shortage, torch_footprint
from service.artifacts.opening import open_source
from service.artifacts.precision import precision_note
from service.artifacts.repository import FIRST_VERSION, Source
from service.engines.contract import Engine
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.engines.torch import TorchEngine, check_installed
from service.engines.torch_host import IDLE_SECONDS, TorchHosts
from service.health.golden import GoldenCheck
from service.health.live_verification import LiveVerification
from service.health.peers import Peers
from service.health.readiness import ModelReadiness, Readiness
from service.health.watch import Watch
from service.inference.core import Inference
from service.inference.engine_pool import EnginePool
from service.inference.tokenization.cl100k import Cl100k
from service.inference.tokenization.request_tokenizer import CHARACTERS_PER_TOKEN, RequestLimits
from service.inference.tokenization.tokenizer import Limits, TextTokenizer
from service.measuring.batches import maps_of, measured_batches, measured_cost, texts_of
from service.models.control import ModelControl
from service.models.loading import ModelLoader, Steps
from service.models.memory import MemoryBudget
from service.models.names import aliases_of, names_of
from service.models.served import ServedModel
from service.models.setup import (
    Setup,
    pinned_models,
    pinned_sources,
    repository_of,
)
from service.models.state import ServiceState
from service.models.table import Models
from service.models.twins import twins_of
from service.models.workers import Workers
from service.scheduler.admission import BatchLimits
from service.settings import Settings
from service.settings.model_table import ModelTable
from service.settings.of_model import of_model
from service.settings.served import given_names
from service.system import machine
from service.system.budget import ByteBudget
from service.system.resources import in_lower_priority
from service.telemetry.metrics import Metrics

CHARACTERS_PER_INPUT_TOKEN = 64

_log = logging.getLogger("headscope")


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


def warmed(
    start: Callable[[], Engine], settings: Settings, idle: Callable[[], object], artifact: Artifact
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
            idle()
            texts = texts_of(config)
            engine.measured = measured_batches(engine, texts, batch_tokens, longest)
            engine.cost = measured_cost(engine, texts, engine.measured, longest)
            if HeadMaps in declared(artifact.manifest):
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


def build_state(
    settings: Settings,
    artifacts: Sequence[Artifact],
    engines: Sequence[Engine] = (),
    peers: Peers | None = None,
    idle: Callable[[], object] = lambda: None,
) -> ServiceState:
    """Start the models of a service, and return its state; see `create_app` and `Shared.idle`."""
    count = len(artifacts) - len(settings.heads_from)
    names = names_of(artifacts[:count], given_names(settings))
    aliases_of(settings, dict.fromkeys([*names, *settings.tables.models]))  # or fail early
    named = dict(zip(names, artifacts[:count], strict=True))
    twins = twins_of(named, artifacts[count:], settings)
    names += twins.names
    for name, artifact in zip(names, artifacts, strict=True):
        token_limits(of_model(settings, name), artifact)  # before anything is loaded
    cl100k = Cl100k() if settings.token_ids == "cl100k" else None  # noqa: S105 - a choice
    if settings.engine != "fake" and not (engines or (peers and peers.index)):
        log_memory(settings, dict(zip(names, artifacts, strict=True)))
    metrics = Metrics(peers.folder if peers else None)
    metrics.service.limited(settings)

    failures: list[str] = []
    several = len(names) > 1 or settings.models is not None or bool(settings.tables.models)
    hosts = torch_hosts(settings)
    shared = Shared(settings, metrics, failures.append, several, hosts, idle)
    fixed = [
        Source(name, FIRST_VERSION, artifact.folder)
        for name, artifact in zip(names, artifacts, strict=True)
    ]
    flagged = () if settings.tables.models else tuple(fixed[:count])
    setup = setup_of(shared, flagged, twins.names)
    pinned = pinned_sources(settings, setup.repository)
    budget = MemoryBudget(lambda *model: footprint(*model).total)
    with contextlib.ExitStack() as started:
        served: list[ServedModel] = []

        def add(source: Source, artifact: Artifact, engine: Engine | None) -> None:
            budget.to_evict(artifact, of_model(settings, source.name), served, ())
            served.append(start_model(source, artifact, shared, engine))
            started.callback(served[-1].inference.close)

        for number, (source, artifact) in enumerate(zip(fixed, artifacts, strict=True)):
            add(source, artifact, engines[number] if engines else None)
        for source in pinned:
            add(source, open_source(settings, source), None)
        started.pop_all()
    models = Models(served, setup.aliases, twins.of_models, order=[*settings.tables.models])
    return ServiceState(
        settings=settings,
        models=models,
        control=ModelControl(
            models, ModelLoader(models, budget, metrics.service), Workers(peers), setup
        ),
        readiness=Readiness(models.readiness, peers),
        metrics=metrics,
        bodies=ByteBudget(settings.max_body_bytes_in_flight, "bodies"),
        replies=ByteBudget(settings.max_bytes_in_flight),
        peers=peers,
        failures=failures,
        cl100k=cl100k,
    )


def setup_of(shared: Shared, fixed: Sequence[Source], twins: Sequence[str]) -> Setup:
    """Return the models of settings, and how each is opened and started.

    Args:
        shared: settings, and dependencies of the models.
        fixed: opened models of the settings `model` and `artifact`.
        twins: names of the twins, which are always kept.

    """
    settings = shared.settings
    names = dict.fromkeys([*(source.name for source in fixed), *settings.tables.models])
    steps = Steps(
        partial(open_source, settings, in_child=True),
        lambda source, artifact: start_model(source, artifact, shared),
        partial(of_model, settings),
    )
    pinned = [*twins, *(source.name for source in fixed)]
    pinned += [target.name for target in pinned_models(settings)]
    return Setup(
        settings,
        repository_of(settings, tuple(fixed)),
        steps,
        frozenset(pinned),
        aliases_of(settings, names),
        lambda new: setup_of(replace(shared, settings=new), fixed, twins),
    )


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
