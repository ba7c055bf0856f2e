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
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from service.models.loading import Loaded, ModelLoader, RunningLoad, cancelled
from service.models.served import ServedModel
from service.models.table import Models
from service.settings import Settings

FAILED_SECONDS = 30.0
"""Time for which requests do not repeat a failed load."""
FULL_SECONDS = 5.0
"""Time for which requests do not repeat a load that had too little memory or no export."""
FAILED = "cannot be loaded: the service's log has the reason"
"""Reason for callers without an admin key: the real one may contain paths of the service."""
FIRST_LOAD_SECONDS = 5.0
"""Expected seconds of a load before one was measured."""
LOAD_ERRORS = (
    *(ModelError, EngineUnavailable, ValueError, OSError),
    *(InsufficientMemory, Forbidden),
)
"""Errors of a load that requests do not repeat for some time."""
_log = logging.getLogger("headscope")
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


@dataclass(frozen=True)
class _Failure:
    """Last failed load of a version."""

    reason: str
    """Reason for admins."""
    until: float
    """`time.monotonic()` until which requests do not repeat the load."""
    error: InsufficientMemory | Forbidden | None = None
    """Error of the load if there was too little memory or no export."""


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
        self.loads: dict[str, RunningLoad] = {}
        """Running loads by the model's name."""
        self._settings = settings
        self._repository = repository
        self._failed: dict[Target, _Failure] = {}
        self._load_seconds = FIRST_LOAD_SECONDS
        """Seconds of the last load after its export, which the next is expected to take."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the models while the block runs, then stop all loads."""
        async with self.loader.running():
            await self.refresh()
            try:
                yield
            finally:
                await cancelled(load.task for load in self.loads.values())

    async def refresh(self) -> list[Source]:
        """Read the repository; return its versions.

        Raises:
            ModelNotLoadable: its folder cannot be read.

        """
        with _readable():
            sources = await asyncio.to_thread(self._repository.sources)
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

    def versions(self, sources: Sequence[Source], name: str | None = None) -> list[VersionState]:
        """Return the state of each version, of all models or of one, as the repository sorts them.

        `sources` are the versions of the repository.
        """
        keys = [(source.name, source.version) for source in sources]
        loaded = {(model.name, model.version): model for model in self.models}
        states = []
        for key in dict.fromkeys([*keys, *loaded]):
            target = Target(*key)
            if model := loaded.get(key):
                current = self.models.find(Target(model.name)) is model
                states.append(self._state_of(model, "serving" if current else "loaded"))
            elif (load := self.loads.get(target.name)) and load.target.version in (None, key[1]):
                states.append(VersionState(*key, "loading"))
            elif reason := self.failure(target):
                states.append(VersionState(*key, "failed", reason))
            else:
                states.append(VersionState(*key, "available"))
        states += [self._state_of(model, "draining") for model in self.loader.draining]
        return [state for state in states if name in (None, state.name)]

    def _state_of(self, model: ServedModel, state: State) -> VersionState:
        return VersionState(
            model.name,
            model.version,
            state,
            fingerprint=model.fingerprint,
            requests=model.uses.count,
            memory_bytes=self.loader.budget.of(model.artifact, model.settings),
            pinned=model.name in self.pinned,
        )

    def failure(self, target: Target) -> str:
        """Return the reason of the last load of a version, for admins; empty if it succeeded."""
        return self._failed[target].reason if target in self._failed else ""

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
        return await self._join(RunningLoad(target, current, may_export=True))

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
        self._check_failure(chosen)
        try:
            async with asyncio.timeout(finish_by - time.monotonic()):
                if load := self.loads.get(target.name):
                    await asyncio.wait([load.task])
                else:
                    keys = self._settings.api_keys or self._settings.keys_file
                    allowed = ("allow",) if keys else ("auto", "allow")
                    may_export = self._settings.export_on_demand in allowed
                    await self._join(RunningLoad(chosen, not target.version, may_export))
        except TimeoutError:
            load = self.loads.get(target.name)
            seconds = load.seconds_left(self._load_seconds) if load else 1
            why = "is still being loaded"
            raise ModelNotLoaded(str(target), why, retry_after_seconds=seconds) from None
        except ModelNotLoadable:
            self._check_failure(chosen)
            raise ModelNotLoaded(str(target), FAILED) from None  # the repository cannot be read
        except InsufficientMemory as error:
            raise error.public_error() from None

    def _check_failure(self, target: Target) -> None:
        """Raise the error of a load for a request if it failed a short time ago."""
        failure = self._failed.get(target)
        if failure is None or (left := failure.until - time.monotonic()) <= 0:
            return
        if isinstance(failure.error, Forbidden):
            raise Forbidden(failure.reason)
        if failure.error:
            raise failure.error.public_error()
        raise ModelNotLoaded(str(target), FAILED, retry_after_seconds=max(1, round(left)))

    def unload(self, target: Target) -> list[ServedModel]:
        """Take a version, by default all versions of a model, from new requests; return them.

        Raises:
            UnknownModel: it is not loaded.
            ModelBusy: it is being loaded.
            Unprocessable: the service has several workers.

        """
        self._require_one_worker()
        if load := self.loads.get(target.name):
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

    async def _join(self, wanted: RunningLoad) -> Loaded:
        """Run a load, or join the same load that is running.

        A running load of the version for another use ends first.
        """
        name = wanted.target.name
        while (load := self.loads.get(name)) and load.target == wanted.target and load != wanted:
            await asyncio.wait([load.task])
        if load is None:
            load = self.loads[name] = wanted
            load.task = asyncio.create_task(self._load(load))
            load.task.add_done_callback(lambda _: self.loads.pop(name))
        elif load != wanted:
            raise load.busy()
        return await asyncio.shield(load.task)

    async def _load(self, load: RunningLoad) -> Loaded:
        """Start a version, or find the loaded one, and give it to new requests."""
        with _readable():
            source = await asyncio.to_thread(self._repository.find, load.target)
        targets = load.target, source.target  # as it was asked for, and as the repository has it
        try:
            artifact = await self.loader.open(source, load)
            model = await self.loader.start(source, artifact, self.pinned | self.loads.keys())
        except LOAD_ERRORS as error:
            _log.error("%s cannot be loaded: %s", source.target, error)
            kept = error if isinstance(error, InsufficientMemory | Forbidden) else None
            reason = {InsufficientMemory: "memory", Forbidden: "refused"}.get(
                type(error), "invalid"
            )
            self.loader.metrics.model_load_failures.labels(reason).inc()
            until = time.monotonic() + (FULL_SECONDS if kept else FAILED_SECONDS)
            self._failed |= dict.fromkeys(targets, _Failure(str(error), until, kept))
            if kept:
                raise
            raise ModelNotLoadable(f"{source.target} cannot be loaded: {error}") from None
        for target in targets:
            self._failed.pop(target, None)
        known = model in self.models
        same = self.models.find(source.target)
        old = self.models.find(Target(model.name)) if load.current else None
        self.models.put(model, current=load.current)
        if same and same is not model:
            self.loader.retire(same)
        if old and old not in (model, same) and not self.models.is_named(old):
            self.loader.retire(old)
        replaced = old.version if old and old is not model else None
        if known:
            return Loaded(model, 0.0, replaced)
        seconds, self._load_seconds = (time.monotonic() - at for at in (load.began, load.opens))
        # by name: a record that somebody keeps would keep the model in memory
        _log.info("%s is loaded and serves, after %.1f s", str(model), seconds)
        return Loaded(model, seconds, replaced)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Raise the error of a repository that cannot be read; only the log has its folder."""
    try:
        yield
    except OSError as error:
        _log.error("the model repository cannot be read: %s", error)
        raise ModelNotLoadable(
            "the model repository cannot be read: the service's log has the reason"
        ) from None
