"""The engines of one service by name: its own is running, others start at first use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping

from service.engines.contract import Engine
from service.errors import EngineNotInstalled, EngineUnavailable
from service.scheduler.admission import BatchLimits
from service.scheduler.batching import Batcher, Observer
from service.scheduler.dispatch import Inspect


class Backends:
    """Finds the batcher of the engine that a request names."""

    def __init__(
        self,
        default: Engine,
        factories: Mapping[str, Callable[[], Engine]],
        limits: BatchLimits,
        observer: Observer,
        inspect: Inspect | None = None,
    ) -> None:
        """Serve by an engine that runs.

        Args:
            default: the service's own engine.
            factories: how each engine that can be asked for is started.
            limits: of each engine's queues.
            observer: is told what they do.
            inspect: is shown what the service's own engine answers.

        """
        self.stand_in: str | None = None
        """Who serves in place of the service's own engine, which has failed."""
        self.failure = ""
        """Why the service's own engine serves no more."""
        self._factories = factories
        self._limits = limits
        self._observer = observer
        self._inspect = inspect
        self.default = self._batcher(default)
        self._others: dict[str, Batcher] = {}
        self._starting: dict[str, asyncio.Task[Batcher]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._made: list[Engine] = []
        """Engines that have started and serve nobody yet."""

    @property
    def name(self) -> str:
        """The service's own engine."""
        return self.default.engine.name

    async def get(self, name: str | None) -> Batcher:
        """The batcher of the named engine; without a name the service's own, or its stand-in.

        One that has died is started again. One that is named is never replaced by another. Who
        leaves while an engine starts does not stop it, and who names another does not wait for it.

        Raises:
            EngineNotInstalled: this service does not have it.
            EngineUnavailable: it has failed, or cannot be started.

        """
        name = name or self.stand_in or self.name
        if name == self.name:
            if self.failure:
                raise EngineUnavailable(self.failure, retry_after_seconds=5)
            return self.default
        batcher = self._others.get(name)
        if batcher is not None and not batcher.failure:
            return batcher
        if name not in self._factories:
            raise EngineNotInstalled(f"the {name} engine is not part of this service")
        if name not in self._starting:
            self._starting[name] = asyncio.create_task(self._start(name))
        return await asyncio.shield(self._starting[name])

    async def restart(self) -> None:
        """Start the service's own engine again, and serve by it.

        Raises:
            ModelError: it cannot be loaded, or says other than PyTorch.
            ServiceError: it cannot be started.

        """
        self.default = self._batcher(await asyncio.to_thread(self._make, self.name))
        self._made.remove(self.default.engine)
        self.stand_in, self.failure = None, ""

    async def retire(self, failure: str, stand_in: str | None) -> None:
        """The service's own engine has failed: refuse what waits for it, and serve by another.

        Args:
            failure: why.
            stand_in: who serves whoever names no engine; nobody when None.

        """
        self.failure, self.stand_in = failure, stand_in
        await asyncio.to_thread(self.default.close, failure)

    def close(self) -> bool:
        """Let running batches finish and release every engine, also one that is just starting.

        Returns:
            Whether all of them have; a call that hangs would keep the process from ending.

        """
        with self._lock:
            self._closed = True
        for engine in self._made:
            engine.close()
        finished = [batcher.close() for batcher in (self.default, *self._others.values())]
        return all(finished)

    def _batcher(self, engine: Engine) -> Batcher:
        return Batcher(engine, self._limits, self._observer, self._inspect)

    def _make(self, name: str) -> Engine:
        engine = self._factories[name]()
        with self._lock:
            if not self._closed:
                self._made.append(engine)
                return engine
        engine.close()
        raise EngineUnavailable("the service is stopping", retry_after_seconds=5)

    async def _start(self, name: str) -> Batcher:
        try:
            engine = await asyncio.to_thread(self._make, name)
            self._others[name] = Batcher(engine, self._limits, self._observer)
            self._made.remove(engine)
            return self._others[name]
        finally:
            del self._starting[name]
