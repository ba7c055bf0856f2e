"""Loading, swapping and unloading of models while the service runs.

    load      open and verify the artifact, start its engine, answer the golden texts; have the
              other workers do the same; then new requests get the model, and the version that
              served before is released after its last request
    unload    no further request gets the model; it is released after its last request
    obtain    load on demand: requests of a model that is being loaded wait within their deadline

A failure changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial

from model.errors import ModelError
from service.artifacts.repository import Source, Target
from service.errors import (
    ConfigBusy,
    EngineUnavailable,
    Forbidden,
    InsufficientMemory,
    ModelNotLoadable,
    ModelNotLoaded,
    UnknownModel,
)
from service.models.failures import FAILED, Failures
from service.models.loading import ModelLoader
from service.models.running_loads import Loaded, RunningLoads
from service.models.served import ServedModel
from service.models.setup import Setup
from service.models.table import Models
from service.models.workers import Workers
from service.settings.of_model import options_of

_log = logging.getLogger("headscope")


class ModelControl:
    """Control of the models of one process, for use on its event loop."""

    def __init__(self, models: Models, loader: ModelLoader, workers: Workers, setup: Setup) -> None:
        """Set the control up; `running` starts it.

        Args:
            models: table of the loaded models.
            loader: start and release of models.
            workers: agreement with the other workers of the service.
            setup: models that can be loaded.

        """
        self.models = models
        self.loader = loader
        self.workers = workers
        self.setup = setup
        self.loads = RunningLoads()
        self._failures = Failures(loader.metrics)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the models while the block runs, then stop all loads."""
        async with self.loader.running():
            await self.refresh()
            async with self.workers.following(self):
                try:
                    yield
                finally:
                    await self.loads.cancel()

    async def refresh(self) -> list[Source]:
        """Read the repository; return its versions.

        Raises:
            ModelNotLoadable: its folder cannot be read.

        """
        try:
            sources = await asyncio.to_thread(self.setup.repository.sources)
        except OSError as error:
            raise unreadable(error) from None
        self.models.offer(self.setup.offered(sources))
        return sources

    async def on_demand(self) -> dict[str, int]:
        """Return models that are not loaded and that a request would load.

        Returns:
            Unix time in seconds at which each model was created, by its name; nothing if the
            repository cannot be read.

        """
        try:
            sources = await self.refresh()
        except ModelNotLoadable:  # no request would load a model; the log has the reason
            return {}
        created: dict[str, int] = {}
        offered = self.setup.offered(sources)
        for source in sources:
            chosen = self.models.chosen(Target(source.name))
            loaded = source.name in self.models.by_name
            if source.name in offered and not loaded and chosen.version in (None, source.version):
                with contextlib.suppress(OSError):  # removed since
                    created[source.name] = source.created
        return created

    def failure(self, target: Target) -> str:
        """Return the reason of the last failed load of a version, for admins; or empty."""
        return self._failures.reason(target)

    async def load(self, target: Target, *, current: bool = True) -> Loaded:
        """Load a version in all workers, and give it to new requests for its name.

        Args:
            target: model, and its version; by default the newest.
            current: whether requests for the bare name get it; otherwise only NAME@VERSION does.

        Raises:
            UnknownModel: the repository has no such model or version.
            ModelBusy: another version of it is being loaded.
            ModelNotLoadable: it is an alias, cannot be opened, or fails its golden texts.
            InsufficientMemory: it does not fit into the budget.

        """
        if target.name in self.models.aliases:
            raise ModelNotLoadable(
                f"{target.name} is an alias: load its model, or remove the alias"
            )
        return await self.loads.run(target, current, self._load(target, current=current))

    async def obtain(self, missing: ModelNotLoaded, finish_by: float) -> None:
        """Load a model on demand in this process, or wait for a load of it that is running.

        Args:
            missing: error of the request that needs the model.
            finish_by: `time.monotonic()` of the request's deadline.

        Raises:
            ModelNotLoaded: it is not loaded by the deadline, or cannot be loaded.
            UnknownModel: the repository has no such model or version.
            Forbidden: it is a checkpoint, and requests may not start its export.
            InsufficientMemory: it does not fit into the budget.

        """
        target = Target.parse(missing.model)
        chosen = self.models.chosen(target)
        self._failures.check(chosen)
        try:
            async with asyncio.timeout(finish_by - time.monotonic()):
                if load := self.loads.of(target.name):
                    await asyncio.wait([load.task])
                else:
                    await self.loads.run(target, None, self._load_here(target))
        except TimeoutError:
            why, seconds = "is still being loaded", self.loads.seconds_left(target.name)
            raise ModelNotLoaded(str(target), why, retry_after_seconds=seconds) from None
        except ModelNotLoadable:
            self._failures.check(chosen)
            raise ModelNotLoaded(str(target), FAILED) from None  # the repository cannot be read
        except InsufficientMemory as error:
            raise error.public_error() from None

    def unload(self, target: Target) -> list[ServedModel]:
        """Take a version, by default all versions of a model, from all workers.

        Returns:
            The versions that this worker had. It may have none of a model that the others have
            loaded on demand.

        Raises:
            UnknownModel: it is not loaded.
            ModelBusy: it is being loaded.

        """
        if load := self.loads.of(target.name):
            raise load.busy()
        versions = self.models.versions(target.name)
        unloaded = [one for one in versions if target.version in (None, one.version)]
        elsewhere = (
            self.workers and target == Target(target.name) and self.models.is_offered(target.name)
        )
        if not unloaded and not elsewhere:
            raise UnknownModel("no such model or version is loaded")
        kept = [one for one in versions if one not in unloaded]
        for model in unloaded:
            self.loader.retire(model)
        self.workers.write_versions(target.name, [model.version for model in kept])
        return unloaded

    def alias(self, alias: str, targets: Sequence[Target]) -> None:
        """Set the targets of an alias in all workers; no target removes it."""
        self.models.alias(alias, targets)
        self.workers.write_alias(alias, targets)

    async def prepare(self, target: Target, *, may_export: bool = True) -> ServedModel:
        """Start a version that gets no requests yet; return it, or the loaded one.

        If the configuration is reloaded meanwhile, the version is started with the new settings.

        Raises:
            Forbidden: it has to be exported, and that is not allowed.
            UnknownModel: the repository has no such model or version.
            ModelNotLoadable: it cannot be opened, or fails its golden texts.
            InsufficientMemory: it does not fit into the budget.

        """
        while True:
            setup = self.setup
            model = await self.start(target, setup, may_export=may_export)
            if setup is self.setup:
                return model
            if model not in self.models:
                self.loader.retire(model)

    def is_current(self, model: ServedModel) -> bool:
        """Return whether a model was started with the settings that it has now."""
        now = options_of(self.setup.settings, model.name)
        return options_of(model.settings, model.name) == now

    async def start(self, target: Target, setup: Setup, *, may_export: bool = True) -> ServedModel:
        """Start a version by a setup, which may be the next one; otherwise as `prepare`."""
        try:
            source = await asyncio.to_thread(setup.repository.find, target)
        except OSError as error:
            raise unreadable(error) from None
        expect = partial(self.loads.expect_export, target.name) if may_export else None
        try:
            artifact = await self.loader.open(source, setup.steps, expect)
            kept = setup.pinned | self.setup.pinned | self.loads.names
            model = await self.loader.start(source, artifact, setup.steps, kept)
        except (ModelError, EngineUnavailable, ValueError, OSError) as error:
            if setup is self.setup:  # a refused reload leaves the model as it was
                self._failures.record((target, source.target), error)
            raise ModelNotLoadable(f"{source.target} cannot be loaded: {error}") from None
        except (InsufficientMemory, Forbidden) as error:
            if setup is self.setup:
                self._failures.record((target, source.target), error)
            raise
        self._failures.forget((target, source.target))
        return model

    def serve(self, model: ServedModel, *, current: bool) -> ServedModel | None:
        """Give a prepared model to new requests; return the version that it replaces, if any."""
        same = self.models.find(Target(model.name, model.version))
        old = self.models.find(Target(model.name)) if current else None
        self.models.put(model, current=current)
        if same and same is not model:
            self.loader.retire(same)
        if old and old not in (model, same) and not self.models.is_named(old):
            self.loader.retire(old)
        return old if old is not model else None

    async def _load_here(self, target: Target) -> Loaded:
        began = time.monotonic()
        may_export = self.setup.requests_export
        model = await self.prepare(self.models.chosen(target), may_export=may_export)
        return self._served(model, began, current=target.version is None)

    async def _load(self, target: Target, *, current: bool) -> Loaded:
        began = time.monotonic()
        model = await self.prepare(target)
        if model in self.models and not self.workers:
            return self._served(model, began, current=current)
        try:
            await self.workers.prepare(model)
            if not self.is_current(model):
                raise ConfigBusy(f"{model} was given other settings meanwhile: load it again")
        except BaseException:
            if model not in self.models:
                self.loader.retire(model)
            raise
        loaded = self._served(model, began, current=current)
        versions = [one.version for one in self.models.versions(model.name)]
        self.workers.write_versions(model.name, versions)
        return loaded

    def _served(self, model: ServedModel, began: float, *, current: bool) -> Loaded:
        known = model in self.models
        old = self.serve(model, current=current)
        seconds = 0.0 if known else time.monotonic() - began
        if not known:
            self.loads.measured(model.name)
            # by name: a record that somebody keeps would keep the model in memory
            _log.info("%s is loaded and serves, after %.1f s", str(model), seconds)
        return Loaded(model, seconds, old.version if old else None)


def unreadable(error: OSError) -> ModelNotLoadable:
    """Return the error of a repository; only the log has its folder."""
    _log.error("the model repository cannot be read: %s", error)
    return ModelNotLoadable("the model repository cannot be read: the service's log has the reason")
