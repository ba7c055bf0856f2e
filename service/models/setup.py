"""Models that the settings name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from service.artifacts.repository import FIRST_VERSION, Repository, Source, Target
from service.errors import UnknownModel
from service.settings import Settings
from service.settings.model_group import ModelTable


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

    Args:
        settings: settings of the service.
        fixed: opened models of the settings `model` and `artifact`.

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
