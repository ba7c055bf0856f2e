"""Models in memory: start within the memory budget, and release after the last request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from model.artifact.manifest import Artifact
from service.artifacts.opening import export_source, open_source
from service.artifacts.repository import Source, Target
from service.errors import Forbidden, InsufficientMemory, ModelBusy
from service.models.served import ServedModel
from service.models.start import Shared, start_model
from service.models.table import Models
from service.settings import Settings
from service.settings.served import OPTIONS, of_model
from service.system import resources

STATUS = Path("/proc/self/status")
MEBIBYTE = 2**20
FIRST_EXPORT_SECONDS = 60.0
"""Expected seconds of an export before one was measured."""
NOT_EXPORTED = (
    "the model is not exported yet, and requests may not start an export: run `headscope export`, "
    "load the model with an admin key, or start the service with --export-on-demand allow"
)
_log = logging.getLogger("headscope")


@dataclass(frozen=True)
class Loaded:
    """Outcome of a load."""

    model: ServedModel
    seconds: float
    """Seconds until requests got the model; 0 if it was loaded before."""
    replaced: str | None = None
    """Version that served before."""


@dataclass
class RunningLoad:
    """Load that is running; the same load joins it, and every other load of the model waits."""

    target: Target
    current: bool
    """Whether requests for the bare name get the version."""
    may_export: bool
    task: asyncio.Task[Loaded] = field(init=False, compare=False)
    began: float = field(default_factory=time.monotonic, compare=False)
    opens: float = field(default_factory=time.monotonic, compare=False)
    """`time.monotonic()` at which the checkpoint is, or is expected to be, exported."""

    def seconds_left(self, expected: float) -> int:
        """Return the seconds until the model is loaded: at least 1, and a quarter more.

        `expected` are the seconds of a load after its export.
        """
        now = time.monotonic()
        return max(1, round(max(expected + self.opens - now, (now - self.began) / 4)))

    def busy(self) -> ModelBusy:
        """Return the error of a command that has to wait for the end of the load."""
        seconds = time.monotonic() - self.began
        return ModelBusy(f"{self.target} has been loading for {seconds:.0f} s: wait for its end")


class ModelLoader:
    """Start and release of models, for use on the event loop."""

    def __init__(self, models: Models, budget: MemoryBudget, shared: Shared) -> None:
        """Initialise with the loaded models; `running` runs them."""
        self.metrics = shared.metrics.registry
        self.budget = budget
        self._shared = shared
        self._models = models
        self._running: dict[int, tuple[ServedModel, contextlib.AsyncExitStack]] = {}
        """Every model in memory and its context, by the model's `id`."""
        self._releases: dict[asyncio.Task[None], ServedModel] = {}
        """Models that no further request gets, by the task that releases them."""
        self._starts = asyncio.Lock()
        """Lock of the part of a load that takes memory and processor time."""
        self._exports = asyncio.Lock()
        """Lock of exports: each is checked against the memory that is free when it begins."""
        self._exporting = 0
        """Number of loads that export, or wait for it."""
        self._export_seconds = FIRST_EXPORT_SECONDS
        """Seconds of the last export, which the next is expected to take."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the models while the block runs."""
        for model in self._models:
            await self._enter(model)
        try:
            yield
        finally:
            await cancelled(self._releases)
            for _, stack in self._running.values():
                await stack.aclose()

    def close(self) -> bool:
        """Close the engines of all models in memory; return whether their batches have finished."""
        finished = [model.close() for model, _ in self._running.values()]
        return all(finished)

    @property
    def in_memory(self) -> list[ServedModel]:
        """Started models, whether requests get them or not."""
        return [model for model, _ in self._running.values()]

    @property
    def draining(self) -> list[ServedModel]:
        """Models that no further request gets, and that finish their last requests."""
        return list(self._releases.values())

    async def open(self, source: Source, load: RunningLoad) -> Artifact:
        """Open the artifact of a version, whose checkpoint is exported first if necessary."""
        if artifact := await self._opened(source):
            return artifact
        if not load.may_export:
            raise Forbidden(NOT_EXPORTED)
        self._exporting += 1
        load.opens = time.monotonic() + self._exporting * self._export_seconds
        try:
            async with self._exports:
                artifact = await self._opened(source)
                if artifact is None:  # no other load has exported the same checkpoint
                    _log.info("%s is being exported", source.target)
                    began = time.monotonic()
                    export = partial(export_source, self._shared.settings, source)
                    artifact = await asyncio.to_thread(resources.in_lower_priority, export)
                    self._export_seconds = time.monotonic() - began
                return artifact
        finally:
            self._exporting -= 1
            load.opens = time.monotonic()

    async def _opened(self, source: Source) -> Artifact | None:
        open_it = partial(open_source, self._shared.settings, source)
        async with self._starts:  # hashes every file, without Python's lock
            return await asyncio.to_thread(resources.in_lower_priority, open_it)

    async def start(self, source: Source, artifact: Artifact, kept: Collection[str]) -> ServedModel:
        """Start a version, or return the loaded model of the same artifact.

        Models with the names `kept` are not unloaded to make room.
        """
        async with self._starts:
            loaded = self._models.find(source.target)
            if loaded and loaded.artifact.sha256 == artifact.sha256:
                return loaded
            settings = of_model(self._shared.settings, source.name)
            await self._make_room(source, artifact, settings, {*kept, source.name})
            before = resident_bytes()
            starting = asyncio.create_task(
                asyncio.to_thread(start_model, source, artifact, self._shared)
            )
            try:
                model = await asyncio.shield(starting)
            except asyncio.CancelledError:  # the service stops; the thread ends by itself
                starting.add_done_callback(_close_started)
                raise
            self.budget.measured(artifact, settings, resident_bytes() - before)
            await self._enter(model)
            self.metrics.model_loads.inc()
            return model

    def retire(self, model: ServedModel) -> None:
        """Take a model out of the table, and release it after its last request."""
        self._models.remove(model)
        task = asyncio.create_task(self._release(model))
        self._releases[task] = model
        task.add_done_callback(self._released)

    async def _make_room(
        self, source: Source, artifact: Artifact, settings: Settings, kept: Collection[str]
    ) -> None:
        """Unload the least recently used models until a model fits."""
        idle = [one for one in self._models if one.name not in kept and not one.uses.count]
        evicted = self.budget.to_evict(artifact, settings, self.in_memory, idle)
        for model in evicted:
            _log.info("%s makes room for %s", str(model), source.target)
            self.metrics.model_evictions.inc()
            self.retire(model)
        releases = [task for task, one in self._releases.items() if one in evicted]
        if releases:
            del idle, evicted, model  # or their memory is kept
            await asyncio.wait(releases)
            await asyncio.to_thread(self._give_back)

    async def _enter(self, model: ServedModel) -> None:
        stack = contextlib.AsyncExitStack()
        self._running[id(model)] = model, stack
        await stack.enter_async_context(model.running())

    async def _release(self, model: ServedModel) -> None:
        await model.uses.drained()
        _, stack = self._running[id(model)]
        await stack.aclose()
        await asyncio.to_thread(model.close)
        del self._running[id(model)]

    def _released(self, task: asyncio.Task[None]) -> None:
        name = str(self._releases.pop(task))
        if task.cancelled():
            return
        if error := task.exception():
            _log.error("%s was not released: %s", name, error)
            return
        _log.info("%s is released", name)
        task.get_loop().run_in_executor(None, self._give_back)

    def _give_back(self) -> None:
        """Return the memory of released models, which are in reference cycles, to the system."""
        gc.collect()
        self._models.release_memory()


def _close_started(starting: asyncio.Task[ServedModel]) -> None:
    if not starting.cancelled() and not starting.exception():
        starting.result().close()


async def cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait for their end."""
    ended = list(tasks)
    for task in ended:
        task.cancel()
    await asyncio.gather(*ended, return_exceptions=True)


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where Linux does not report it."""
    try:
        lines = STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)


class MemoryBudget:
    """Bytes that the loaded models may take together."""

    def __init__(self, predict: Callable[[Artifact, Settings], int]) -> None:
        """Set the budget.

        `predict` estimates the bytes of a model that was never loaded.
        """
        self._predict = predict
        self._measured: dict[tuple[object, ...], int] = {}
        """Bytes of a loaded model by the SHA-256 of its artifact and its settings."""

    def of(self, artifact: Artifact, settings: Settings) -> int:
        """Return the bytes of a model: measured, or predicted if it was never loaded."""
        known = self._measured.get(_key(artifact, settings))
        return known or self._predict(artifact, settings)

    def measured(self, artifact: Artifact, settings: Settings, size: int) -> None:
        """Record the bytes by which the process has grown with a model.

        Pages that an earlier model left behind make a model look small, so a size below half of the
        prediction counts as half of it.
        """
        least = self._predict(artifact, settings) // 2
        self._measured[_key(artifact, settings)] = max(size, least)

    def to_evict(
        self,
        artifact: Artifact,
        settings: Settings,
        loaded: Iterable[ServedModel],
        evictable: Sequence[ServedModel],
    ) -> list[ServedModel]:
        """Return the models to unload so that another fits, the least recently used first.

        Only the `evictable` of the `loaded` models may be unloaded now.
        """
        limit = settings.memory_budget
        if limit is None:
            return []
        needed = self.of(artifact, settings)
        sizes = {id(m): self.of(m.artifact, m.settings) for m in loaded}
        names = {id(model): str(model) for model in loaded}
        free, evicted = limit - sum(sizes.values()), []
        for model in sorted(evictable, key=lambda model: model.uses.last_began):
            if needed <= free:
                break
            free += sizes.pop(id(model))
            evicted.append(model)
        if needed > free:
            held = ", ".join(f"{names[key]} {_mebibytes(size)}" for key, size in sizes.items())
            needs = f"the model needs about {_mebibytes(needed)}"
            raise InsufficientMemory(
                f"{needs}, and {_mebibytes(max(free, 0))} of --memory-budget "
                f"{_mebibytes(limit)} are free (in use or pinned: {held or 'none'}): unload a "
                "model, or raise the budget",
                f"{needs}, and the models in use leave too little of the {_mebibytes(limit)} "
                "for all models: try again later, or ask for another model",
            )
        return evicted


def _key(artifact: Artifact, settings: Settings) -> tuple[object, ...]:
    return artifact.sha256, *(getattr(settings, name) for name in OPTIONS)


def _mebibytes(size: int) -> str:
    return f"{round(size / MEBIBYTE)} MiB"
