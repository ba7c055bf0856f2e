"""Models and artifacts that the settings select."""

from __future__ import annotations

from pathlib import Path

from model.sources.locate import DEFAULT_MODEL
from model.sources.short_names import full_name
from service.settings import Settings


def served(settings: Settings) -> tuple[str | Path, ...]:
    """Return the full names of models, then the folders of artifacts, in order.

    With a model repository and neither of them, it is empty; otherwise the default model.
    """
    given: tuple[str | Path, ...] = (*map(full_name, settings.model), *settings.artifact)
    return given or (() if settings.models else (DEFAULT_MODEL,))


def each(settings: Settings) -> list[Settings]:
    """Return separate settings for each model and artifact.

    Raises:
        ValueError: the number of served model names differs from the number of models.

    """
    names, count = settings.served_model_name, len(served(settings))
    if names and len(names) != count:
        raise ValueError(
            f"--served-model-name is given {len(names)} times and {count} models are served: give "
            "it once for each, models before artifacts"
        )
    return [
        settings.model_copy(
            update={"model": (source,), "artifact": ()}
            if isinstance(source, str)
            else {"model": (), "artifact": (source,)}
        )
        for source in served(settings)
    ]


def checkpoint_of(settings: Settings) -> str:
    """Return the name of the model to export.

    Raises:
        ValueError: the settings name several models, or an artifact.

    """
    match served(settings):
        case [str(name)]:
            return name
    raise ValueError("one model at a time is exported: name one")


def artifact_of(settings: Settings) -> Path | None:
    """Return the folder of the artifact to serve; None for a model."""
    match served(settings):
        case [Path() as folder]:
            return folder
    return None
