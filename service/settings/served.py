"""Models and artifacts that the settings select, and the settings of each of them."""

from __future__ import annotations

import json
from pathlib import Path

from model.sources.hub.repository import full_name
from model.sources.locate import DEFAULT_MODEL
from service.settings.model_group import ModelTable
from service.settings.schema import Settings
from service.settings.sources import DEVICES

OPTIONS = tuple(
    name for name in ModelTable.model_fields if name in Settings.flags() and name != "artifact"
)
"""Settings that the table of a model may have."""


def of_model(settings: Settings, name: str) -> Settings:
    """Return the settings with which a model is started, by the name that requests choose."""
    table = settings.tables.get(name)
    if table is None:
        return settings
    own: dict[str, object] = {
        option: value for option in OPTIONS if (value := getattr(table, option)) is not None
    }
    if own.keys() & DEVICES or table.device == "cpu":  # replaces both of the service
        own = dict.fromkeys(DEVICES) | own
    if not table.from_repository:
        own["model"] = () if table.source is None else (full_name(table.source),)
        own["artifact"] = () if table.artifact is None else (table.artifact,)
    return settings.model_copy(update=own)


def prompts_given(settings: Settings, name: str) -> str:
    """Return the prompts in the table of a model as JSON; empty without any."""
    table = settings.tables.get(name)
    if table is None or not (table.prompts or table.default_prompt is not None):
        return ""
    return json.dumps([table.prompts, table.default_prompt], sort_keys=True)


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
