"""The engines of one service by name: the default's is running, others start at first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from service.batching import Batcher, BatchLimits, Observer
from service.engines.base import Engine
from service.errors import EngineNotInstalled


class Backends:
    """Finds the batcher of the engine that a request names."""

    def __init__(
        self,
        default: Engine,
        others: Mapping[str, Callable[[], Engine]],
        limits: BatchLimits,
        observer: Observer,
    ) -> None:
        self.default = Batcher(default, limits, observer)
        self._others = others
        self._limits = limits
        self._observer = observer
        self._started = {default.name: self.default}
        self._starting: dict[str, asyncio.Task[Batcher]] = {}

    async def get(self, name: str | None) -> Batcher:
        """The batcher of the named engine, the default's without a name.

        One that has died is started again. None is ever replaced by another. Who leaves while
        an engine starts does not stop it, and who names another does not wait for it.

        Raises:
            EngineNotInstalled: this service does not have it.
            EngineUnavailable: it cannot be started.

        """
        if name is None or name == self.default.engine.name:
            return self.default
        batcher = self._started.get(name)
        if batcher is not None and batcher.engine.alive:
            return batcher
        if name not in self._others:
            raise EngineNotInstalled(f"the {name} engine is not part of this service")
        if name not in self._starting:
            self._starting[name] = asyncio.create_task(self._start(name))
        return await asyncio.shield(self._starting[name])

    async def _start(self, name: str) -> Batcher:
        try:
            engine = await asyncio.to_thread(self._others[name])
            self._started[name] = Batcher(engine, self._limits, self._observer)
            return self._started[name]
        finally:
            del self._starting[name]

    def close(self) -> None:
        """Let running batches finish and release every engine."""
        for batcher in self._started.values():
            batcher.close()
