"""Models that the settings name, and checks of the models, folders and aliases in a file."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from pydantic import ValidationError

from model.artifact.manifest import MANIFEST, Artifact, Manifest
from model.sources.home import expanded
from model.sources.locate import display_name
from service.artifacts.repository import FIRST_VERSION, Repository, Source, Target
from service.errors import UnknownModel
from service.settings import Settings
from service.settings.model_group import ModelTable
from service.settings.served import given_names, served
from service.settings.sources import ALIAS, MAX_MISTAKES, MODEL, Content
from service.system.logs import printable


def repository_of(settings: Settings, fixed: tuple[Source, ...] = ()) -> Repository:
    """Return the versions of models that the settings name.

    `fixed` are the opened models of the settings `model` and `artifact`.
    """
    tables = settings.tables.items()
    named = [source for name, table in tables if (source := _source(name, table))]
    versions = {name: table.version for name, table in tables if table.version}
    return Repository(settings.models, (*fixed, *named), versions)


def _source(name: str, table: ModelTable) -> Source | None:
    """Return the source of a table's model; None for a model of the repository."""
    if table.artifact is not None:
        return Source(name, FIRST_VERSION, table.artifact)
    if table.source is not None:
        return Source(name, FIRST_VERSION, Path(table.source), "named")
    return None


def pinned_targets(settings: Settings) -> list[Target]:
    """Return the models of the repository to load at the start: of tables, then of `pinned`."""
    tables = settings.tables.items()
    own = [
        Target(name, table.version)
        for name, table in tables
        if table.from_repository and table.load == "pinned"
    ]
    return list(dict.fromkeys([*own, *map(Target.parse, settings.pinned)]))


def pinned_sources(settings: Settings, repository: Repository) -> list[Source]:
    """Return the models of the repository that are loaded at the start.

    Raises:
        ValueError: the folder cannot be read, or a pinned model is not in it.

    """
    pinned = pinned_targets(settings)
    if settings.models is None:
        if pinned:
            raise ValueError(
                f"{pinned[0]} is a pinned model of a repository: give its folder by --models"
            )
        return []
    try:
        sources = repository.sources()
        found = [repository.find(target) for target in pinned]
    except (OSError, UnknownModel) as error:
        wanted = f" and --pinned {', '.join(map(str, pinned))}" if pinned else ""
        raise ValueError(f"--models {settings.models}{wanted}: {error}") from None
    if not sources:
        raise ValueError(
            f"--models {settings.models} holds no model: give a folder with an artifact or a "
            "checkpoint in NAME or NAME/VERSION"
        )
    return found


def unique_names(models: Sequence[tuple[str, str]], given: Sequence[str] = ()) -> list[str]:
    """Return the name of each model, with its precision if the model's name is not unique.

    `models` are pairs of name and precision; `given` has a name for each instead, or none.

    Raises:
        ValueError: two models have the same name, or a name is not printable.

    """
    times = Counter(model for model, _ in models)
    names = list(given) or [
        f"{model}:{precision}" if times[model] > 1 else model for model, precision in models
    ]
    for name, count in Counter(names).items():
        if not name.isprintable():
            raise ValueError(
                f"the model's name {printable(name)!r} has characters that do not print, which "
                "paths, headers and logs cannot hold: give another with --served-model-name"
            )
        if count > 1:
            raise ValueError(
                f"{name} is to be served {count} times: requests could not choose one; give each "
                "a name of its own with --served-model-name"
            )
    return names


def check_names(settings: Settings) -> None:
    """Check the names of all models to serve before any is exported."""
    unique_names(list(_named(settings)), given_names(settings))


def _named(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield name and precision of each model; skip an artifact that cannot be read."""
    for source in served(settings):
        if isinstance(source, Path):
            with contextlib.suppress(OSError, ValidationError):
                manifest = Manifest.model_validate_json((source / MANIFEST).read_bytes())
                yield manifest.model, manifest.precision
        else:
            yield display_name(source), settings.precision


def names_of(artifacts: Sequence[Artifact], given: Sequence[str] = ()) -> list[str]:
    """Return the name of each artifact: its model's name, with the precision if not unique.

    `given` has a name for each instead, or none.
    """
    manifests = [artifact.manifest for artifact in artifacts]
    return unique_names([(manifest.model, manifest.precision) for manifest in manifests], given)


def aliases_of(settings: Settings, names: Iterable[str]) -> dict[str, Target]:
    """Return the target of each alias.

    `names` are the models that are not pinned.

    Raises:
        ValueError: an alias is given twice, is a model's name, or its model is not served.

    """
    known = {name: Target(name) for name in names}
    for target in pinned_targets(settings):
        known |= {target.name: Target(target.name), str(target): target}
    targets: dict[str, Target] = {}
    for given in settings.alias:
        alias, _, name = given.partition("=")
        if name not in known:
            raise ValueError(f"--alias {given}: {name} is not served; there are {', '.join(known)}")
        if alias in known:
            raise ValueError(f"--alias {given}: {alias} is the name of a model that is served")
        if (other := targets.setdefault(alias, known[name])) != known[name]:
            raise ValueError(f"--alias {given}: {alias} is an alias of {other} already")
    return targets


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


def _of_tables(settings: Settings, content: Content) -> _Mistakes:
    if not settings.tables:
        return
    for option in EXCLUSIVE:
        if option in content.values:
            flag = option.replace("_", "-")
            yield (option,), f"{flag} is for models without tables: give it in [model.NAME]"
    sources: list[Source] = []
    with contextlib.suppress(OSError):  # reported as a folder that does not exist
        sources = Repository(settings.models).sources()
    for name, table in settings.tables.items():
        versions = [source.version for source in sources if source.name == name]
        mistakes = _of_table(name, table, settings), _of_version(table, settings.models, versions)
        for key, what in chain(*mistakes):
            yield (MODEL, name, *key), f"{MODEL}.{name}: {what}"


def _of_table(name: str, table: ModelTable, settings: Settings) -> _Mistakes:
    if not name or not name.isprintable():
        yield (), "the name of a model needs printable characters"
    if table.source is not None and table.artifact is not None:
        yield (), "source and artifact exclude each other: leave one out"
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
    if table.devices is not None and (table.device_id is not None or table.device == "cpu"):
        yield ("devices",), "devices is for CUDA, without device-id: leave the others out"


def _of_version(table: ModelTable, models: Path | None, versions: list[str]) -> _Mistakes:
    """Yield what is wrong with a model of the repository, which has these versions of it."""
    if not table.from_repository:
        if table.version is not None:
            yield ("version",), "version is for models of the folder of the setting models"
    elif models is None:
        yield (), "give its source or artifact, or the folder of all models by the setting models"
    elif not versions:
        yield (), f"the folder {models} has no such model"
    elif table.version not in (None, *versions):
        what = f"there is no version {table.version}; there are {', '.join(versions)}"
        yield ("version",), what


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
