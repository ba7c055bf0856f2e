"""Pool of a model's engines by name: its own engine runs, others start at first use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping

from service.engines.contract import Engine
from service.errors import EngineNotInstalled, EngineUnavailable
from service.scheduler.lanes import BatchLimits, Observer
from service.scheduler.outputs import Inspect
from service.scheduler.scheduler import Scheduler


class EnginePool:
    """Schedulers of the engines that a request can name."""

    def __init__(
        self,
        default: Engine,
        factories: Mapping[str, Callable[[], Engine]],
        limits: BatchLimits,
        observer: Observer,
        inspect: Inspect | None = None,
    ) -> None:
        """Serve with `default`, the model's running engine.

        `factories` start each available engine, by name; `inspect` gets the computed batches of the
        model's own engine.
        """
        self.name = default.name
        """Name of the model's own engine."""
        self.stand_in: str | None = None
        """Name of the engine that serves in place of the failed own engine; None if none does."""
        self.failure = ""
        """Reason why the own engine no longer serves; empty while it serves."""
        self.limits = limits
        self.observer = observer
        self._schedulers = {self.name: Scheduler(default, limits, observer, inspect)}
        self._factories = factories
        self._inspect = inspect
        self._starting: dict[str, asyncio.Task[Scheduler]] = {}
        self._lock = threading.Lock()
        self._closed = False

    @property
    def default(self) -> Scheduler:
        """Scheduler of the model's own engine."""
        return self._schedulers[self.name]

    async def get(self, name: str | None) -> Scheduler:
        """Return the scheduler of the named engine, by default of the own engine or its stand-in.

        A dead engine is restarted, and a named engine is never replaced by another. A starting
        engine survives the cancellation of the caller, and does not block callers of other engines.

        Raises:
            EngineNotInstalled: the service does not have the engine.
            EngineUnavailable: the engine has failed, or cannot be started.

        """
        name = name or self.stand_in or self.name
        if name == self.name and self.failure:
            raise EngineUnavailable(self.failure, retry_after_seconds=5)
        scheduler = self._schedulers.get(name)
        if scheduler is not None and (name == self.name or not scheduler.failure):
            return scheduler
        if name not in self._factories:
            raise EngineNotInstalled(f"the {name} engine is not part of this service")
        if name not in self._starting:
            starting = asyncio.create_task(asyncio.to_thread(self._start, name))
            starting.add_done_callback(lambda _: self._starting.pop(name))
            self._starting[name] = starting
        return await asyncio.shield(self._starting[name])

    async def restart(self) -> None:
        """Restart the own engine, and serve with it.

        Raises:
            ModelError: the artifact cannot be loaded, or the engine disagrees with PyTorch.
            ServiceError: the engine cannot be started.

        """
        await asyncio.to_thread(self._start, self.name)
        self.stand_in, self.failure = None, ""

    def try_start(self, name: str) -> None:
        """Start an engine and stop it again; called in a thread. Raises as `restart` does."""
        self._factories[name]().close()

    async def retire(self, failure: str, stand_in: str | None) -> None:
        """Retire the own engine for a failure, and reject its waiting requests.

        Requests that name no engine are passed to the engine named `stand_in`, if there is one.
        """
        self.failure, self.stand_in = failure, stand_in
        await asyncio.to_thread(self.default.close, failure)

    def close(self) -> bool:
        """Let running batches finish, and release every engine, including starting engines.

        Return whether all batches have finished; a hung call would keep the process from ending.
        """
        with self._lock:
            self._closed = True
        finished = [scheduler.close() for scheduler in self._schedulers.values()]
        return all(finished)

    def _start(self, name: str) -> Scheduler:
        """Start an engine, and replace the scheduler of its name. Runs in a thread."""
        engine = self._factories[name]()
        with self._lock:
            if not self._closed:
                inspect = self._inspect if name == self.name else None
                if name in self._schedulers:
                    self.observer.count("engine_restarts")
                self._schedulers[name] = Scheduler(engine, self.limits, self.observer, inspect)
                return self._schedulers[name]
        engine.close()
        raise EngineUnavailable("the service is stopping", retry_after_seconds=5)
