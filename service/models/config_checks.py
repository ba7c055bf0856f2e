"""Checks of a file of settings beyond the types of its values: folders, models and aliases."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from model.sources.home import expanded
from service.artifacts.repository import Repository, Source
from service.models.setup import pinned_targets
from service.settings import Settings
from service.settings.model_group import ModelTable
from service.settings.sources import ALIAS, MAX_MISTAKES, MODEL, Content

FOLDERS = ("models", "artifact")
EXCLUSIVE = ("artifact", "served_model_name", "revision", "pooling")
"""Settings that exclude tables of models."""
PATHS = ("/", "./", "../", "~")
"""Prefixes of sources that are paths, and not names of the hub."""

_Mistakes = Iterator[tuple[tuple[str, ...], str]]
"""Key of each mistake, and what is wrong with it."""


def check_content(settings: Settings, content: Content) -> None:
    """Check the folders, models and aliases of a file.

    Raises:
        ValueError: something is wrong; the message has the line and column of each mistake.

    """
    found = chain(
        _of_paths(settings, content),
        _of_names(settings),
        _of_tables(settings, content),
        _of_aliases(settings),
    )
    mistakes = [f"{content.place(*key)}: {what}" for key, what in islice(found, MAX_MISTAKES)]
    if mistakes:
        raise ValueError("--config " + "; ".join(mistakes))


def _of_paths(settings: Settings, content: Content) -> _Mistakes:
    for name in FOLDERS:
        value = getattr(settings, name) if name in content.values else None
        for folder in value if isinstance(value, tuple) else [value]:
            if folder is not None and not folder.is_dir():
                yield (name,), f"{name.replace('_', '-')} {folder} is not a folder"
    file = settings.keys_file if "keys_file" in content.values else None
    if file is not None and not file.is_file():
        yield ("keys_file",), f"keys-file {file} is not a file"


def _of_names(settings: Settings) -> _Mistakes:
    for name in settings.tables:
        if not name or not name.isprintable():
            what = "the name of a model needs printable characters"
            yield (MODEL, name), f"{MODEL}.{name}: {what}"


def _of_tables(settings: Settings, content: Content) -> _Mistakes:
    tables = settings.tables
    if not tables:
        return
    for option in EXCLUSIVE:
        if option in content.values:
            flag = option.replace("_", "-")
            yield (option,), f"{flag} is for models without tables: give it in [model.NAME]"
    sources = _sources(settings.models)
    for name, table in tables.items():
        where = f"{MODEL}.{name}"
        for key, what in chain(_of_table(table, settings), _of_devices(table)):
            yield (MODEL, name, *key), f"{where}: {what}"
        if table.from_repository and settings.models is not None:
            versions = [source.version for source in sources if source.name == name]
            if not versions:
                yield (
                    (MODEL, name),
                    f"{MODEL}.{name}: the folder {settings.models} has no such model",
                )
            elif table.version not in (None, *versions):
                what = f"there is no version {table.version}; there are {', '.join(versions)}"
                yield (MODEL, name, "version"), f"{where}: {what}"


def _of_table(table: ModelTable, settings: Settings) -> _Mistakes:
    if table.source is not None and table.artifact is not None:
        yield (), "source and artifact exclude each other: leave one out"
    elif table.from_repository and settings.models is None:
        yield (), "give its source or artifact, or the folder of all models by the setting models"
    if table.version is not None and not table.from_repository:
        yield ("version",), "version is for models of the folder of the setting models"
    if table.load == "on-demand" and not settings.on_demand:
        yield ("load",), "load is on-demand, which on-demand = false excludes: give pinned or off"
    if table.artifact is not None:
        for option in ("precision", "pooling"):
            if getattr(table, option) is not None:
                yield (option,), f"an artifact has its own {option}: leave it out"
        if not table.artifact.is_dir():
            yield ("artifact",), f"artifact {table.artifact} is not a folder"
    source = table.source or ""
    if source.startswith(PATHS) and not expanded(source).exists():
        yield ("source",), f"source {source} does not exist"


def _of_devices(table: ModelTable) -> _Mistakes:
    if table.devices is not None and (table.device_id is not None or table.device == "cpu"):
        yield ("devices",), "devices is for CUDA, without device-id: leave the others out"


def _of_aliases(settings: Settings) -> _Mistakes:
    tables, pinned = settings.tables, pinned_targets(settings)
    known = dict.fromkeys([*tables, *map(str, pinned), *(target.name for target in pinned)])
    for pair in settings.alias if tables else ():
        alias, _, name = pair.partition("=")
        where = f"{ALIAS}.{alias}"
        if alias in tables:
            yield (ALIAS, alias), f"{where}: this is the name of a model: choose another alias"
        if name not in known:
            yield (ALIAS, alias), f"{where}: {name} is not a model; there are {', '.join(known)}"
        elif name in tables and tables[name].load == "off":
            yield (ALIAS, alias), f"{where}: {name} is off"


def _sources(models: Path | None) -> list[Source]:
    try:
        return Repository(models).sources()
    except OSError:  # reported as a folder that does not exist
        return []
