"""The artifact to serve: named by its folder, or exported from a model and kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from model.artifact.cache import cache_key
from model.artifact.manifest import Artifact, Precision, load_artifact
from model.errors import ArtifactError, VerificationError
from model.foreign import ForeignGraph, find_graph
from model.recognition import check_recognised
from model.runtimes.registry import check_device, weight_bits
from model.sources import display_name, local, locate
from service.distribution import EXPORTER, require
from service.hub import open_hub
from service.settings import Settings

Progress = Callable[[str], None]
FOREIGN = (
    "this is a foreign ONNX graph: it was not verified against PyTorch, and has neither attention "
    "weights nor a hidden state but the last: `headscope export` of its checkpoint in safetensors "
    "has them"
)
"""What is said once of an artifact that is somebody else's export."""


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
    if artifact.manifest.foreign:
        progress(FOREIGN)
    if not artifact.manifest.verification.passed and not settings.allow_unverified:
        raise VerificationError(
            f"{artifact.folder} failed its verification; --allow-unverified serves it all the same"
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


def find_foreign(
    settings: Settings, progress: Progress, precision: Precision
) -> ForeignGraph | None:
    """The foreign graph that the settings name as the model, if it is one.

    Raises:
        ModelError: it is none that can be served.
        ValueError: a precision is asked for, or what reads it is not installed.

    """
    place = local(settings.model)
    if place is None or find_graph(place) is None:
        return None
    graph = find_graph(find_checkpoint(settings, progress))
    if precision != "fp32":
        raise ValueError(f"{settings.model} is a foreign ONNX graph, which keeps its own precision")
    check_device("foreign", settings.device)
    require(f"reading {settings.model}", "onnx")
    return graph


def _cached(settings: Settings, progress: Progress, precision: Precision) -> Artifact:
    graph = find_foreign(settings, progress, precision)
    if graph is not None:
        from model.export import foreign  # noqa: PLC0415 - it imports onnx

        name = display_name(settings.model)
        folder = _folder(settings, foreign.foreign_key(graph, name))
        return _kept(folder, lambda: foreign.export_foreign(graph, folder, name, progress))
    require(f"exporting {settings.model}", *EXPORTER)
    checkpoint = find_checkpoint(settings, progress)
    name = display_name(settings.model)
    key = cache_key(checkpoint, name, precision, weight_bits(precision))
    folder = _folder(settings, key)

    def make() -> Artifact:
        from model.export.exporter import export  # noqa: PLC0415 - it imports torch, which a cached one spares

        return export(checkpoint, folder, name, precision, progress, settings.device).artifact

    return _kept(folder, make)


def _folder(settings: Settings, key: str) -> Path:
    return settings.cache_folder / "artifacts" / key


def _kept(folder: Path, make: Callable[[], Artifact]) -> Artifact:
    """The artifact of the cache, made where it is not there yet."""
    if folder.exists():
        try:
            return load_artifact(folder)
        except ArtifactError as error:
            raise ArtifactError(f"{error} (delete {folder})") from None
    try:
        return make()
    except ArtifactError:
        if not folder.exists():
            raise
        return load_artifact(folder)  # another process was faster with the same export
