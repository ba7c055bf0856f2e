"""Loading, swapping and unloading of models while the service runs.

    load      open and verify the artifact, start its engine, answer the golden texts; then new
              requests get the model, and the version that served before is released after its last
              request
    unload    no further request gets the model; it is released after its last request
    obtain    load on demand: requests of a model that is being loaded wait within their deadline

A failure changes nothing. With several workers each loads models on demand for itself, and all
other commands are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from model.errors import ModelError
from service.artifacts.repository import Repository, Source, Target
from service.errors import (
    EngineUnavailable,
    Forbidden,
    InsufficientMemory,
    ModelNotLoadable,
    ModelNotLoaded,
    UnknownModel,
    Unprocessable,
)
from service.models.loading import ModelLoader
from service.models.running_loads import FAILED, Failures, Loaded, RunningLoads
from service.models.served import ServedModel
from service.models.table import Models
from service.settings import Settings

_log = logging.getLogger("headscope")


class ModelControl:
    """Control of the models of one process, for use on its event loop."""

    def __init__(
        self,
        models: Models,
        loader: ModelLoader,
        settings: Settings,
        repository: Repository,
        pinned: frozenset[str],
    ) -> None:
        """Set the control up; `running` starts it."""
        self.models = models
        self.loader = loader
        self.pinned = pinned
        """Names of models that are never unloaded to make room."""
        self.loads = RunningLoads()
        self._settings = settings
        self._repository = repository
        self._failures = Failures(loader.metrics)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the models while the block runs, then stop all loads."""
        async with self.loader.running():
            await self.refresh()
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
            sources = await asyncio.to_thread(self._repository.sources)
        except OSError as error:
            raise _unreadable(error) from None
        self.models.offer(self._offered(sources))
        return sources

    def _offered(self, sources: Iterable[Source]) -> list[str]:
        """Return the names of the models that their first request loads."""
        off = {name for name, table in self._settings.tables.items() if table.load == "off"}
        names = dict.fromkeys(source.name for source in sources if source.name not in off)
        return [*names] if self._settings.on_demand else []

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
        offered = self._offered(sources)
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
        """Load a version, and give it to new requests for its name.

        Args:
            target: model, and its version; by default the newest.
            current: whether requests for the bare name get it; otherwise only NAME@VERSION does.

        Raises:
            UnknownModel: the repository has no such model or version.
            ModelBusy: another version of it is being loaded.
            ModelNotLoadable: it is an alias, cannot be opened, or fails its golden texts.
            InsufficientMemory: it does not fit into the budget.
            Unprocessable: the service has several workers.

        """
        self._require_one_worker()
        if target.name in self.models.aliases:
            raise ModelNotLoadable(
                f"{target.name} is an alias: load its model, or remove the alias"
            )
        work = self._load(target, current=current, may_export=True)
        return await self.loads.run(target, current, work)

    async def obtain(self, missing: ModelNotLoaded, finish_by: float) -> None:
        """Load a model on demand in this process, or wait for a load of it that is running.

        `finish_by` is the `time.monotonic()` of the request's deadline.

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
                    keys = self._settings.api_keys or self._settings.keys_file
                    allowed = ("allow",) if keys else ("auto", "allow")
                    may_export = self._settings.export_on_demand in allowed
                    work = self._load(chosen, current=not target.version, may_export=may_export)
                    await self.loads.run(target, None, work)
        except TimeoutError:
            why, seconds = "is still being loaded", self.loads.seconds_left(target.name)
            raise ModelNotLoaded(str(target), why, retry_after_seconds=seconds) from None
        except ModelNotLoadable:
            self._failures.check(chosen)
            raise ModelNotLoaded(str(target), FAILED) from None  # the repository cannot be read
        except InsufficientMemory as error:
            raise error.public_error() from None

    def unload(self, target: Target) -> list[ServedModel]:
        """Take a version, by default all versions of a model, from new requests; return them.

        Raises:
            UnknownModel: it is not loaded.
            ModelBusy: it is being loaded.
            Unprocessable: the service has several workers.

        """
        self._require_one_worker()
        if load := self.loads.of(target.name):
            raise load.busy()
        versions = self.models.versions(target.name)
        unloaded = [one for one in versions if target.version in (None, one.version)]
        if not unloaded:
            raise UnknownModel("no such model or version is loaded")
        for model in unloaded:
            self.loader.retire(model)
        return unloaded

    def alias(self, alias: str, target: Target | None) -> None:
        """Set the target of an alias; None removes it."""
        self._require_one_worker()
        self.models.alias(alias, target)

    def _require_one_worker(self) -> None:
        if (workers := self._settings.workers) > 1:
            raise Unprocessable(
                f"this service has {workers} workers, and models are loaded, swapped, unloaded and "
                "given aliases at run time in a service with one: start it with --workers 1, or "
                "restart it with other models"
            )

    async def _load(self, target: Target, *, current: bool, may_export: bool) -> Loaded:
        """Start a version, or find the loaded one, and give it to new requests."""
        began = time.monotonic()
        model = await self._prepare(target, may_export=may_export)
        known = model in self.models
        same = self.models.find(Target(model.name, model.version))
        old = self.models.find(Target(model.name)) if current else None
        self.models.put(model, current=current)
        if same and same is not model:
            self.loader.retire(same)
        if old and old not in (model, same) and not self.models.is_named(old):
            self.loader.retire(old)
        seconds = 0.0 if known else time.monotonic() - began
        if not known:
            self.loads.measured(model.name)
            # by name: a record that somebody keeps would keep the model in memory
            _log.info("%s is loaded and serves, after %.1f s", str(model), seconds)
        return Loaded(model, seconds, old.version if old and old is not model else None)

    async def _prepare(self, target: Target, *, may_export: bool) -> ServedModel:
        """Start a version that gets no requests yet; return it, or the loaded one."""
        try:
            source = await asyncio.to_thread(self._repository.find, target)
        except OSError as error:
            raise _unreadable(error) from None
        expect = partial(self.loads.expect_export, target.name) if may_export else None
        targets = target, source.target
        try:
            artifact = await self.loader.open(source, expect)
            kept = self.pinned | self.loads.names
            model = await self.loader.start(source, artifact, kept)
        except (ModelError, EngineUnavailable, ValueError, OSError) as error:
            self._failures.record(targets, error)
            raise ModelNotLoadable(f"{source.target} cannot be loaded: {error}") from None
        except (InsufficientMemory, Forbidden) as error:
            self._failures.record(targets, error)
            raise
        self._failures.forget(targets)
        return model


def _unreadable(error: OSError) -> ModelNotLoadable:
    """Return the error of a repository; only the log has its folder."""
    _log.error("the model repository cannot be read: %s", error)
    return ModelNotLoadable("the model repository cannot be read: the service's log has the reason")


State = Literal["serving", "loaded", "loading", "draining", "available", "failed"]


@dataclass(frozen=True)
class VersionState:
    """State of a version of a model."""

    name: str
    version: str
    state: State
    """`serving` is the version of requests for the bare name, `loaded` answers to NAME@VERSION,
    `draining` finishes its last requests, `available` can be loaded."""
    reason: str | None = None
    """Reason of the last failed load."""
    fingerprint: str | None = None
    """Fingerprint of a loaded version."""
    requests: int = 0
    """Number of requests that a loaded version answers now."""
    memory_bytes: int | None = None
    """Memory of a loaded version: measured, or predicted for a model of the start."""
    pinned: bool = False
    """Whether the version is never unloaded to make room."""


def versions(control: ModelControl, sources: Sequence[Source]) -> list[VersionState]:
    """Return the state of all versions, sorted as the repository sorts them."""
    models = control.models
    keys = [(source.name, source.version) for source in sources]
    loaded = {(model.name, model.version): model for model in models}
    states = []
    for name, version in dict.fromkeys([*keys, *loaded]):
        target = Target(name, version)
        if model := loaded.get((name, version)):
            current = models.find(Target(name)) is model
            states.append(_loaded(control, model, "serving" if current else "loaded"))
        elif target in control.loads:
            states.append(VersionState(name, version, "loading"))
        else:
            reason = control.failure(target)
            state: State = "failed" if reason else "available"
            states.append(VersionState(name, version, state, reason or None))
    return states + [_loaded(control, model, "draining") for model in control.loader.draining]


def of_name(states: Iterable[VersionState], name: str) -> list[VersionState]:
    """Return the states of the versions of a model."""
    return [state for state in states if state.name == name]


def _loaded(control: ModelControl, model: ServedModel, state: State) -> VersionState:
    return VersionState(
        model.name,
        model.version,
        state,
        fingerprint=model.fingerprint,
        requests=model.uses.count,
        memory_bytes=control.loader.budget.of(model.artifact, model.settings),
        pinned=model.name in control.pinned,
    )
