"""Models to start and to unload when the settings of a process change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from service.artifacts.repository import Source, Target
from service.models.control import ModelControl, unreadable
from service.models.served import ServedModel
from service.models.setup import Setup, pinned_models
from service.settings.of_model import options_of


@dataclass(frozen=True)
class Replaced:
    """Outcome of a replacement: `NAME@VERSION` of each model."""

    loaded: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    """Loaded models that were started again with other settings."""
    unloaded: list[str] = field(default_factory=list)


class Replacements:
    """Replacement of a setup: `prepare` starts the models, and `apply` serves them in one step."""

    def __init__(self, control: ModelControl, setup: Setup) -> None:
        """Set the next setup.

        Args:
            control: control of the models.
            setup: models of the new settings.

        """
        self._control = control
        self._old, self._new = control.setup, setup
        self._sources: list[Source] = []
        self._prepared: list[tuple[ServedModel, bool]] = []
        """Started models, and whether requests for the bare name get each."""

    async def prepare(self) -> None:
        """Start all models that the new setup has and the process lacks; none gets requests yet.

        A second call also replaces models that requests have loaded since the first.

        Raises:
            ServiceError: a model cannot be started, or the repository cannot be read; the others
                stay prepared.

        """
        try:
            self._sources = await asyncio.to_thread(self._new.repository.sources)
        except OSError as error:
            raise unreadable(error) from None
        while missing := next(self._missing(), None):
            target, current = missing
            model = await self._control.start(target, self._new)
            self._prepared.append((model, current))

    def discard(self) -> None:
        """Release the prepared models."""
        for model, _ in self._prepared:
            if model not in self._control.models:
                self._control.loader.retire(model)
        self._prepared = []

    def apply(self) -> Replaced:
        """Give the prepared models to new requests, and unload what the new setup lacks."""
        control, models = self._control, self._control.models
        control.setup, result = self._new, Replaced()
        models.arrange([*self._new.settings.tables.models])
        for alias in self.changed_aliases():
            models.alias(alias, self._new.aliases.get(alias, ()))
        for model, current in self._prepared:
            same = models.find(Target(model.name, model.version))
            (result.replaced if same else result.loaded).append(str(model))
            control.serve(model, current=current)
        for model in list(models):
            if self._goes(model.name):
                result.unloaded.append(str(model))
                control.loader.retire(model)
        for name in self._of_another_version():
            if models.find(Target(name)) is None:
                models.forget_choice(name)
        models.offer(self._new.offered(self._sources))
        return result

    def changed_aliases(self) -> list[str]:
        """Return the aliases whose targets differ between the setups."""
        old, new = self._old.aliases, self._new.aliases
        return [alias for alias in {**old, **new} if old.get(alias) != new.get(alias)]

    def changed_names(self) -> list[str]:
        """Return the names of models whose loaded versions the new settings choose."""
        names = [target.name for target in self._newly_pinned()]
        tables = [*self._old.settings.tables.models, *self._new.settings.tables.models]
        gone = [name for name in tables if self._goes(name)]
        return list(dict.fromkeys([*names, *self._of_another_version(), *gone]))

    def _missing(self) -> Iterator[tuple[Target, bool]]:
        """Yield models to start, and whether requests for the bare name get each."""
        models, settings = self._control.models, self._new.settings
        prepared = {(model.name, model.version) for model, _ in self._prepared}
        for model in list(models):
            now = options_of(model.settings, model.name)
            known = (model.name, model.version) in prepared or self._goes(model.name)
            if now != options_of(settings, model.name) and not known:
                current = models.find(Target(model.name)) is model
                yield Target(model.name, model.version), current
        again = [name for name in self._of_another_version() if models.find(Target(name))]
        for target in [*self._newly_pinned(), *map(Target, again)]:
            version = target.version or self._default_version(target.name)
            loaded = models.find(Target(target.name))
            wanted = target.name, version
            if (loaded is None or loaded.version != version) and wanted not in prepared:
                yield Target(target.name, version), True

    def _newly_pinned(self) -> list[Target]:
        before = pinned_models(self._old.settings)
        return [target for target in pinned_models(self._new.settings) if target not in before]

    def _of_another_version(self) -> list[str]:
        """Return the names of the models whose tables have another version than before."""
        old, new = self._old.settings.tables.models, self._new.settings.tables.models
        both = [name for name in old if name in new]
        return [name for name in both if old[name].version != new[name].version]

    def _default_version(self, name: str) -> str | None:
        table = self._new.settings.tables.models.get(name)
        if table is not None and table.version is not None:
            return table.version
        versions = [source.version for source in self._sources if source.name == name]
        return versions[-1] if versions else None

    def _goes(self, name: str) -> bool:
        """Return whether the file had a model with a source of its own, or now has it off."""
        old = self._old.settings.tables.models.get(name)
        new = self._new.settings.tables.models.get(name)
        if new is not None and new.load == "off":
            return old is None or old.load != "off"
        known = any(source.name == name for source in self._sources)
        return old is not None and not old.from_repository and not known
