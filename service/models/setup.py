"""Models that the settings name."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from model.artifact.manifest import MANIFEST, Artifact, Manifest
from model.sources.locate import display_name
from service.artifacts.repository import FIRST_VERSION, Repository, Source, Target
from service.errors import UnknownModel
from service.settings import Settings
from service.settings.model_group import ModelTable
from service.settings.served import given_names, served
from service.system.logs import printable


@dataclass(frozen=True)
class Setup:
    """Models that can be loaded."""

    settings: Settings
    repository: Repository
    pinned: frozenset[str]
    """Names of models that are never unloaded to make room."""

    @property
    def requests_export(self) -> bool:
        """Whether a user's request may start the export of a checkpoint."""
        keys = self.settings.api_keys or self.settings.keys_file
        return self.settings.export_on_demand in (("allow",) if keys else ("auto", "allow"))

    def offered(self, sources: Iterable[Source]) -> list[str]:
        """Return the names of the models that their first request loads."""
        tables = self.settings.tables
        names = dict.fromkeys(source.name for source in sources)
        off = {name for name, table in tables.items() if table.load == "off"}
        return [name for name in names if name not in off] if self.settings.on_demand else []


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
