"""Watch over a model's engine, and policies for its permanent failure.

Policy `fail` ends the process, so that its supervisor starts another. Policy `torch` lets PyTorch
serve, reports that in health, info, metrics and logs, and tries to restart the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Literal

from service.engines.contract import Engine
from service.health.readiness import ModelReadiness
from service.telemetry.metrics import ModelMetrics

_log = logging.getLogger("headscope")

Policy = Literal["fail", "torch"]
TICK_SECONDS = 0.25
SUSPICIOUS_FAILURES = 3
"""Number of consecutive failed batches after which the golden texts check the engine."""
TRIAL_SECONDS = 10.0
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 60.0
"""First and maximum pause between attempts to recover, doubled each time."""


class Watch:
    """Watch over a model's own engine."""

    def __init__(
        self,
        readiness: ModelReadiness,
        trial: Callable[[Engine], None],
        policy: Policy,
        give_up: Callable[[str], None],
        metrics: ModelMetrics,
        label: str = "",
    ) -> None:
        """Set the watch up; `watching` runs it.

        `trial` raises if an engine does not work, and `give_up` ends the process with a reason.
        Readiness fails while the stand-in engine cannot start. `label` is the prefix of log
        messages.
        """
        self._engines = readiness.engines
        self._readiness = readiness
        self._label = label
        self._trial = trial
        self._policy = policy
        self._give_up = give_up
        self._metrics = metrics
        self._tried = SUSPICIOUS_FAILURES - 1
        """Number of consecutive failures at the last check of the engine."""

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch the engine while the block runs; an error of the watch itself ends the process."""
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
            end = "PyTorch serves" if stand_in else "the service ends"
            _log.critical("%s%s; %s", self._label, failure, end)
            self._metrics.stood_in(stood_in=stand_in is not None)
            self._engines.default.fail_overdue()
            await self._engines.retire(failure, stand_in)
            if stand_in is None:
                self._give_up(self._label + failure)
                return
            await self._recovery(stand_in)

    async def _diagnosis(self) -> str:
        """Return the reason for which the engine has failed permanently; or empty."""
        scheduler = self._engines.default
        if scheduler.failure or scheduler.failed_in_a_row <= self._tried:
            if not scheduler.failed_in_a_row:
                self._tried = SUSPICIOUS_FAILURES - 1
            return scheduler.failure
        self._tried = scheduler.failed_in_a_row
        try:
            async with asyncio.timeout(TRIAL_SECONDS):
                await asyncio.to_thread(self._trial, scheduler.engine)
        except Exception as error:  # a failed engine may raise anything
            name = scheduler.engine.name
            return f"the {name} engine failed {self._tried} batches in a row and a trial: {error}"
        return ""

    async def _recovery(self, stand_in: str) -> None:
        """Try to restart the engine until that succeeds, while the stand-in serves."""
        starting = asyncio.create_task(self._engines.get(stand_in))
        pause = FIRST_PAUSE_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_PAUSE_SECONDS)
            try:
                await self._engines.restart()
            except Exception as error:  # whatever the error, there will be another attempt
                kind = type(error).__name__
                _log.warning("%sno recovery yet: %s: %s", self._label, kind, error)
            else:
                break
        await asyncio.gather(starting, return_exceptions=True)
        _log.warning("%sthe %s engine serves again", self._label, self._engines.name)
        self._metrics.stood_in(stood_in=False)

    async def _try_stand_in(self) -> None:
        """Start the stand-in engine once, so that readiness knows whether it works."""
        if not (stand_in := self._stand_in()):
            return
        try:
            await asyncio.to_thread(self._engines.try_start, stand_in)
        except Exception as error:  # any error rules out the fallback
            failure = f"the {stand_in} engine, which would stand in, cannot start: {error}"
            self._readiness.fallback_failure = failure
            _log.error("%s%s", self._label, failure)

    def _stand_in(self) -> str | None:
        return "torch" if self._policy == "torch" and self._engines.name != "torch" else None

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._give_up(f"{self._label}the watch over the engine failed: {type(error).__name__}")
