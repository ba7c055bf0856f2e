"""Models and artifacts that the settings select."""

from __future__ import annotations

from pathlib import Path

from model.sources.locate import DEFAULT_MODEL
from model.sources.short_names import full_name
from service.settings import Settings
from service.settings.of_model import of_model


def served(settings: Settings) -> tuple[str | Path, ...]:
    """Return the full names of models, then the folders of artifacts, in order.

    Without them, they are those of the pinned tables. With a model repository or tables of other
    models it is empty; otherwise the default model.
    """
    given: tuple[str | Path, ...] = (*map(full_name, settings.model), *settings.artifact)
    if given or not settings.tables:
        return given or (() if settings.models else (DEFAULT_MODEL,))
    sources: list[str | Path] = []
    for name in named_by_tables(settings):
        own = of_model(settings, name)
        sources += [*own.model, *own.artifact]
    return tuple(sources)


def named_by_tables(settings: Settings) -> list[str]:
    """Return the names of the models that the file's tables have loaded at the start.

    Models of the repository are not among them: `Settings.pinned` has them.
    """
    tables = settings.tables.items()
    return [name for name, one in tables if one.load == "pinned" and not one.from_repository]


def given_names(settings: Settings) -> tuple[str, ...]:
    """Return the names of `served` models that the settings give; empty for the models' own."""
    return settings.served_model_name or tuple(named_by_tables(settings))


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
    if settings.tables:
        return [of_model(settings, name) for name in named_by_tables(settings)]
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
