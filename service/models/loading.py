"""Models in memory: start within the memory budget, and release after the last request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from functools import partial
from typing import Any

from model.artifact.manifest import Artifact
from service.artifacts.opening import export_source, open_source
from service.artifacts.repository import Source
from service.errors import Forbidden
from service.models.memory import MemoryBudget, resident_bytes
from service.models.served import ServedModel
from service.models.start import Shared, start_model
from service.models.table import Models
from service.settings import Settings
from service.settings.served import of_model
from service.system import resources

NOT_EXPORTED = (
    "the model is not exported yet, and requests may not start an export: run `headscope export`, "
    "load the model with an admin key, or start the service with --export-on-demand allow"
)
_log = logging.getLogger("headscope")


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
        self._export_seconds = 60.0
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

    async def open(self, source: Source, expect: Callable[[float], None] | None) -> Artifact:
        """Open the artifact of a version, whose checkpoint is exported first if necessary.

        `expect` is called with the expected seconds of an export, and with 0 after it.
        """
        if artifact := await self._opened(source):
            return artifact
        if expect is None:
            raise Forbidden(NOT_EXPORTED)
        self._exporting += 1
        expect(self._exporting * self._export_seconds)
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
            expect(0)

    async def _opened(self, source: Source) -> Artifact | None:
        open_it = partial(open_source, self._shared.settings, source)
        async with self._starts:  # hashes every file, without Python's lock
            return await asyncio.to_thread(resources.in_lower_priority, open_it)

    async def start(self, source: Source, artifact: Artifact, kept: Collection[str]) -> ServedModel:
        """Start a version, or return the loaded model of the same artifact.

        Args:
            source: version to start.
            artifact: artifact of the version.
            kept: names of models that must not be unloaded to make room.

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
