"""The watch over the service's own engine, and what happens once it has failed for good.

Two policies: `fail` has the process end, so that whoever supervises it starts another; `torch` lets
PyTorch serve, says so wherever the service speaks of itself, and tries to start the engine again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Literal

from service.engines.contract import Engine
from service.health.readiness import Readiness
from service.inference.engine_pool import EnginePool
from service.telemetry.metrics import Metrics

_log = logging.getLogger("headscope")

Policy = Literal["fail", "torch"]
TICK_SECONDS = 0.25
SUSPICIOUS_FAILURES = 3
"""Failed batches in a row after which the engine is tried on the golden texts."""
TRIAL_SECONDS = 10.0
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 60.0
"""Pauses between attempts to recover; doubled each time."""


class Watch:
    """One service's watch over its engine."""

    def __init__(
        self,
        engines: EnginePool,
        readiness: Readiness,
        trial: Callable[[Engine], None],
        policy: Policy,
        give_up: Callable[[str], None],
        metrics: Metrics,
    ) -> None:
        """Watch nothing yet.

        Args:
            engines: of the service; its own one is watched.
            readiness: fails while the engine that would stand in cannot start.
            trial: raises if an engine does not work.
            policy: what to do when it has failed for good.
            give_up: ends the process; is told why.
            metrics: say whether the service is degraded.

        """
        self._engines = engines
        self._readiness = readiness
        self._trial = trial
        self._policy = policy
        self._give_up = give_up
        self._metrics = metrics
        self._tried = SUSPICIOUS_FAILURES - 1
        """Failures in a row after which the engine was last tried."""

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch for as long as the block runs. A watch that fails itself ends the process."""
        task = asyncio.create_task(self._run())
        task.add_done_callback(self._ended)
        trial = asyncio.create_task(self._try_stand_in())
        try:
            yield
        finally:
            task.remove_done_callback(self._ended)
            task.cancel()
            trial.cancel()
            await asyncio.gather(task, trial, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            failure = await self._diagnosis()
            if not failure:
                continue
            stand_in = self._stand_in()
            _log.critical("%s; %s", failure, "PyTorch serves" if stand_in else "the service ends")
            self._metrics.degraded.set(stand_in is not None)
            self._engines.default.fail_overdue()
            await self._engines.retire(failure, stand_in)
            if stand_in is None:
                self._give_up(failure)
                return
            await self._recovery(stand_in)

    async def _diagnosis(self) -> str:
        """Why the engine has failed for good; nothing if it has not."""
        scheduler = self._engines.default
        if scheduler.failure or scheduler.failed_in_a_row <= self._tried:
            if not scheduler.failed_in_a_row:
                self._tried = SUSPICIOUS_FAILURES - 1
            return scheduler.failure
        self._tried = scheduler.failed_in_a_row
        try:
            async with asyncio.timeout(TRIAL_SECONDS):
                await asyncio.to_thread(self._trial, scheduler.engine)
        except Exception as error:  # an engine that has failed may raise anything
            name = scheduler.engine.name
            return f"the {name} engine failed {self._tried} batches in a row and a trial: {error}"
        return ""

    async def _recovery(self, stand_in: str) -> None:
        """Try to start the engine again until that works, while another serves."""
        starting = asyncio.create_task(self._engines.get(stand_in))
        pause = FIRST_PAUSE_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_PAUSE_SECONDS)
            try:
                await self._engines.restart()
            except Exception as error:  # whatever it is, there will be another attempt
                _log.warning("no recovery yet: %s: %s", type(error).__name__, error)
            else:
                break
        await asyncio.gather(starting, return_exceptions=True)
        _log.warning("the %s engine serves again", self._engines.name)
        self._metrics.degraded.set(0)

    async def _try_stand_in(self) -> None:
        """Start the engine that would stand in once, so that readiness knows whether it can."""
        if not (stand_in := self._stand_in()):
            return
        try:
            await asyncio.to_thread(self._engines.try_start, stand_in)
        except Exception as error:  # whatever it is, there would be nothing to fall back to
            failure = f"the {stand_in} engine, which would stand in, cannot start: {error}"
            self._readiness.fallback_failure = failure
            _log.error("%s", failure)

    def _stand_in(self) -> str | None:
        return "torch" if self._policy == "torch" and self._engines.name != "torch" else None

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._give_up(f"the watch over the engine failed: {type(error).__name__}")
