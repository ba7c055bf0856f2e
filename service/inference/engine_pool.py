"""The engines of one service by name: its own runs, others start at first use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping

from service.engines.contract import Engine
from service.errors import EngineNotInstalled, EngineUnavailable
from service.scheduler.admission import BatchLimits
from service.scheduler.dispatch import Inspect
from service.scheduler.observer import Observer
from service.scheduler.scheduler import Scheduler


class EnginePool:
    """The scheduler of each engine that a request can name."""

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
        """Name of the engine that serves in place of the service's own, which has failed."""
        self.failure = ""
        """The reason for which the service's own engine serves no more."""
        self._factories = factories
        self._limits = limits
        self.observer = observer
        self._inspect = inspect
        self.default = self._scheduler(default)
        self._others: dict[str, Scheduler] = {}
        self._starting: dict[str, asyncio.Task[Scheduler]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._made: list[Engine] = []
        """Engines that have started and serve nobody yet."""

    @property
    def name(self) -> str:
        """The service's own engine."""
        return self.default.engine.name

    async def get(self, name: str | None) -> Scheduler:
        """The scheduler of the named engine; without a name the service's own, or its stand-in.

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
        scheduler = self._others.get(name)
        if scheduler is not None and not scheduler.failure:
            return scheduler
        if name not in self._factories:
            raise EngineNotInstalled(f"the {name} engine is not part of this service")
        if name not in self._starting:
            self._starting[name] = asyncio.create_task(self._start(name))
        return await asyncio.shield(self._starting[name])

    async def restart(self) -> None:
        """Start the service's own engine again, and serve by it.

        Raises:
            ModelError: it cannot be loaded, or disagrees with PyTorch.
            ServiceError: it cannot be started.

        """
        self.default = self._scheduler(await asyncio.to_thread(self._make, self.name))
        self._made.remove(self.default.engine)
        self.observer.restarted()
        self.stand_in, self.failure = None, ""

    def try_start(self, name: str) -> None:
        """Start an engine and stop it again; in a thread.

        Raises:
            ModelError: it cannot be loaded, or disagrees with PyTorch.
            ServiceError: it cannot be started.

        """
        engine = self._make(name)
        self._made.remove(engine)
        engine.close()

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
        finished = [scheduler.close() for scheduler in (self.default, *self._others.values())]
        return all(finished)

    def _scheduler(self, engine: Engine) -> Scheduler:
        return Scheduler(engine, self._limits, self.observer, self._inspect)

    def _make(self, name: str) -> Engine:
        engine = self._factories[name]()
        with self._lock:
            if not self._closed:
                self._made.append(engine)
                return engine
        engine.close()
        raise EngineUnavailable("the service is stopping", retry_after_seconds=5)

    async def _start(self, name: str) -> Scheduler:
        try:
            engine = await asyncio.to_thread(self._make, name)
            if name in self._others:
                self.observer.restarted()
            self._others[name] = Scheduler(engine, self._limits, self.observer)
            self._made.remove(engine)
            return self._others[name]
        finally:
            del self._starting[name]
