"""Table of the loaded models: names, versions, aliases, and the choice by a request.

The table changes on the event loop only. A request keeps the model that it was given, so it belongs
to one version from its first byte to its last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from service.artifacts.repository import Target
from service.errors import ModelNotLoaded, NoTaskHead, UnknownModel
from service.health.engine import EngineHealth
from service.inference.core import Inference
from service.models.served import ServedModel
from service.settings import Settings
from service.system import resources
from service.system.distribution import version


class Models:
    """Loaded models."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        aliases: Mapping[str, Target] | None = None,
        order: Sequence[str] = (),
    ) -> None:
        """Initialise with the models that are loaded at the start.

        The default is the first, or the first in `order`, which has names; others follow.
        """
        self._loaded = {(model.name, model.version): model for model in models}
        self._current = {model.name: model.version for model in models}
        self._chosen_versions: dict[str, str] = {}
        """Version of each name that was current last, which is loaded on demand again."""
        self._aliases = dict(aliases or {})
        self._offered: list[str] = []
        self._order = {name: place for place, name in enumerate(order)}
        self.by_name: dict[str, ServedModel] = {}
        """Loaded models that requests can choose, by their names and aliases."""
        self._refresh()

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._loaded.values())

    def __contains__(self, model: ServedModel) -> bool:
        return self._loaded.get((model.name, model.version)) is model

    @property
    def default(self) -> ServedModel:
        """Model of requests without a name.

        Raises:
            ModelNotLoaded: the first model is loaded on demand, and is not loaded now.
            UnknownModel: no model is loaded.

        """
        if self.loaded_default is not None:
            return self.loaded_default
        if self._offered:
            raise ModelNotLoaded(self._offered[0])
        raise UnknownModel("no model is loaded")

    def find(self, target: Target) -> ServedModel | None:
        """Return the loaded model of a target; None if it is not loaded."""
        version = target.version or self._current.get(target.name)
        return None if version is None else self._loaded.get((target.name, version))

    def chosen(self, target: Target) -> Target:
        """Return a target with the version that was current last, unless it has one."""
        return (
            target
            if target.version
            else Target(target.name, self._chosen_versions.get(target.name))
        )

    def versions(self, name: str) -> list[ServedModel]:
        """Return the loaded versions of a model, the current one first."""
        loaded = [model for model in self if model.name == name]
        return sorted(loaded, key=lambda model: model.version != self._current.get(name))

    def put(self, model: ServedModel, *, current: bool = True) -> None:
        """Add a loaded model.

        It replaces a loaded one of the same name and version. If `current`, requests for its name
        get it from now on.
        """
        self._loaded[model.name, model.version] = model
        if current or model.name not in self._current:
            self._current[model.name] = self._chosen_versions[model.name] = model.version
        self._refresh()

    def remove(self, model: ServedModel) -> None:
        """Remove a model; no further request gets it."""
        key = (model.name, model.version)
        if self._loaded.get(key) is model:
            del self._loaded[key]
        if self._current.get(model.name) == model.version and key not in self._loaded:
            del self._current[model.name]
        self._refresh()

    def alias(self, alias: str, target: Target | None) -> None:
        """Set the target of an alias; None removes it."""
        self._aliases.pop(alias, None)
        if target:
            self._aliases[alias] = target
        self._refresh()

    @property
    def aliases(self) -> Mapping[str, Target]:
        """Target of each alias."""
        return self._aliases

    def is_named(self, model: ServedModel) -> bool:
        """Return whether an alias names the version of a model."""
        return Target(model.name, model.version) in self._aliases.values()

    def offer(self, names: Collection[str]) -> None:
        """Set the names of the models that are loaded on demand."""
        self._offered = list(names)
        self._refresh()

    def health(self) -> dict[str, EngineHealth]:
        """Return the health of each loaded model and tower by its name, or NAME@VERSION."""
        names = Counter(model.name for model in self)
        return {
            str(tower) if names[model.name] > 1 else tower.name: tower.health
            for model in self
            for tower in model.towers
        }

    def release_memory(self) -> None:
        """Return memory that engines and the allocator keep, and is free now, to the system."""
        for tower in [tower for model in self for tower in model.towers]:
            tower.inference.engines.default.engine.release_memory()
        resources.release_memory()

    def named(self, name: str | None) -> ServedModel:
        """Return the model of a name, or the default; a single model has every name.

        A name may be an alias, or NAME@VERSION.

        Raises:
            ModelNotLoaded: the model can be loaded on demand.
            UnknownModel: there are several models, and none has the name.

        """
        if name is None:
            return self.default
        if model := self.by_name.get(name):
            return model
        target = self._aliases.get(name) or Target.parse(name)
        if target.version and (model := self.find(target)):
            return model
        for wanted in (target, Target(name)):
            if wanted.name in self._offered and not self.find(wanted):
                raise ModelNotLoaded(str(wanted))
        if self.several:
            known = dict.fromkeys([*self.by_name, *self._offered])
            raise UnknownModel(f"there is no such model; there are: {', '.join(known)}")
        return self.default

    def supporting(self, name: str | None, check: Callable[[Inference], object]) -> ServedModel:
        """Return the model of a name; without a name the first that passes a check, or the default.

        `check` raises `NoTaskHead` if a model does not support the request. Errors are as for
        `named`.
        """
        if name is None and self.several:
            for model in self._chosen:
                try:
                    check(model.inference)
                except NoTaskHead:
                    continue
                return model
        return self.named(name)

    def _refresh(self) -> None:
        """Update what follows from the loaded models, the aliases and the offered names."""
        current = {name: self._loaded[name, version] for name, version in self._current.items()}
        self.by_name = dict(current)
        for alias, target in self._aliases.items():
            if model := self.find(target):
                self.by_name[alias] = model
        own = [*{**current, **dict.fromkeys(self._offered)}]
        own.sort(key=lambda name: self._order.get(name, len(self._order)))
        self.loaded_default = current.get(own[0]) if own else None
        """Model of requests without a name; None if it is not loaded."""
        self._chosen = list(current.values())
        """Current version of each loaded model."""
        self.several = len(own) > 1
        """Whether requests can choose among models, so that replies name theirs."""


def banner(settings: Settings, models: Models) -> Iterator[str]:
    """Yield lines with the version, each model and its engine, and whether requests need a key."""
    yield f"Headscope {version()}"
    for model in models:
        yield from map(_served, model.towers)
    keys = settings.api_keys is not None or settings.keys_file is not None
    yield "every request needs a key" if keys else "no request needs a key"


def _served(model: ServedModel) -> str:
    """Return a line with the engine of a model or tower, and what it reads."""
    engine, manifest = model.inference.engines.default.engine, model.artifact.manifest
    reads = f"at most {model.inference.limits.max_tokens} tokens a text"
    if manifest.images:
        height, width = manifest.images.size
        reads = f"pictures at {width} × {height} pixels, {model.inference.limits.max_tokens} tokens"
    return f"{model.name}: {manifest.precision} by {engine.name} ({engine.provider}), {reads}"
