"""The artifact to serve: named by its folder, or exported from a model and kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from model.artifact.cache import cache_key
from model.artifact.manifest import Artifact, Precision, load_artifact
from model.errors import ArtifactError, VerificationError
from model.recognition import check_recognised
from model.runtimes.registry import weight_bits
from model.sources import display_name, locate
from service.distribution import EXPORTER, require
from service.hub import open_hub
from service.settings import Settings

Progress = Callable[[str], None]


def open_artifact(
    settings: Settings, progress: Progress = lambda _: None, precision: Precision = "fp32"
) -> Artifact:
    """The artifact to serve: the folder that was named, or the model's export from the cache.

    Raises:
        ModelError: there is none, or it is damaged.
        VerificationError: its verification failed and the settings do not allow that.
        ValueError: a model is named, and what exports it is not installed.

    """
    if settings.artifact is not None:
        artifact = load_artifact(settings.artifact)
    else:
        artifact = _cached(settings, progress, precision)
    verification = artifact.manifest.verification
    if not verification.passed and not settings.allow_unverified:
        why = f": {verification.failed}" if verification.failed else ""
        raise VerificationError(
            f"{artifact.folder} failed its verification{why}; "
            "--allow-unverified serves it all the same"
        )
    return artifact


def find_checkpoint(settings: Settings, progress: Progress) -> Path:
    """The folder of the model that the settings name.

    Raises:
        ModelError: there is none, or it is none that is supported.

    """
    hub = open_hub(settings.hub_endpoint)
    checkpoint = locate(settings.model, hub, progress, settings.revision)
    check_recognised(checkpoint)
    return checkpoint


def _cached(settings: Settings, progress: Progress, precision: Precision) -> Artifact:
    require(f"exporting {settings.model}", *EXPORTER)
    checkpoint = find_checkpoint(settings, progress)
    name = display_name(settings.model)
    key = cache_key(checkpoint, name, precision, weight_bits(precision))
    folder = settings.cache_folder / "artifacts" / key
    if folder.exists():
        try:
            return load_artifact(folder)
        except ArtifactError as error:
            raise ArtifactError(f"{error} (delete {folder})") from None
    from model.export.exporter import export  # noqa: PLC0415 - it imports torch, which a cached one spares

    try:
        return export(checkpoint, folder, name, precision, progress, settings.device).artifact
    except ArtifactError:
        if not folder.exists():
            raise
        return load_artifact(folder)  # another process was faster with the same export
