"""Health of a model's engine: its readiness, and a watch with policies for its permanent failure.

Policy `fail` ends the process, so that its supervisor starts another. Policy `torch` lets PyTorch
serve, reports that in health, info, metrics and logs, and tries to restart the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal

from service.engines.contract import Engine, TextTask
from service.errors import ServiceError
from service.health.live_verification import LiveVerification
from service.inference.engine_pool import EnginePool
from service.scheduler.scheduler import Scheduler

_log = logging.getLogger("headscope")

FRESH_SECONDS = 5.0
"""Maximum age of the last computed batch; beyond it, a probe is computed."""
PROBE_SECONDS = 2.0
"""Time limit of a probe, and of starting an engine."""
TICK_SECONDS = 0.25
SUSPICIOUS_FAILURES = 3
"""Number of consecutive failed batches after which the golden texts check the engine."""
TRIAL_SECONDS = 10.0
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 60.0
"""First and maximum pause between attempts to recover, doubled each time."""


@dataclass(eq=False)
class EngineHealth:
    """Health of a model's own engine, by its batches, probes, trials and live verification."""

    engines: EnginePool
    live_verification: LiveVerification
    probe: TextTask
    """Task that is computed where no batch was computed lately."""
    trial: Callable[[Engine], None]
    """Function that raises if an engine does not work."""
    policy: Literal["fail", "torch"]
    give_up: Callable[[str], None]
    """Function that ends the process with a reason."""
    label: str = ""
    """Prefix of log messages."""
    fallback_failure: str = ""
    """Reason for which the stand-in engine cannot start; or empty."""
    _probed: tuple[float, str] = (-math.inf, "")
    """Time of the last failed probe by `time.monotonic()`, and its error."""
    _tried: int = SUSPICIOUS_FAILURES - 1
    """Number of consecutive failures at the last trial of the engine."""

    @property
    def known_failure(self) -> str:
        """Reason for which the model is not ready, as known without a probe; or empty.

        A failed probe counts until the next computed batch.
        """
        if failure := self.live_verification.problem or self.fallback_failure:
            return failure
        scheduler, (failed_at, failure) = self.engines.default, self._probed
        if self.engines.stand_in is None and scheduler.failure:
            return scheduler.failure
        return failure if scheduler.last_success < failed_at else ""

    async def check(self) -> tuple[str, str]:
        """Return the failure of the model, and the reason for which a stand-in serves; or empty."""
        failure, degraded = self.live_verification.problem or self.fallback_failure, ""
        try:
            if not failure:
                async with asyncio.timeout(PROBE_SECONDS):
                    scheduler = await self.engines.get(None)
                failure, degraded = await self._failure_of(scheduler), self.engines.failure
        except TimeoutError:
            failure = "PyTorch is starting"
        except ServiceError as error:
            failure = error.detail
        return failure, degraded

    async def _failure_of(self, scheduler: Scheduler) -> str:
        """Return the failure of an engine, by its last batch or by a probe; or empty."""
        if scheduler.failure or time.monotonic() - scheduler.last_success <= FRESH_SECONDS:
            return scheduler.failure
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await scheduler.submit("encode", [self.probe])
        except TimeoutError:
            failure = f"the engine did not answer a probe within {PROBE_SECONDS:g} s"
        except ServiceError as error:
            failure = f"the engine failed a probe: {error.detail}"
        else:
            return ""
        self._probed = (time.monotonic(), failure)
        return failure

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch the engine and verify live batches while the block runs.

        An error of the watch itself ends the process.
        """
        self.live_verification.open()
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
            await self.live_verification.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            failure = await self._diagnosis()
            if not failure:
                continue
            stand_in = self._stand_in()
            end = "PyTorch serves" if stand_in else "the service ends"
            _log.critical("%s%s; %s", self.label, failure, end)
            await self.engines.retire(failure, stand_in)
            if stand_in is None:
                self.give_up(self.label + failure)
                return
            await self._recovery(stand_in)

    async def _diagnosis(self) -> str:
        """Return the reason for which the engine has failed permanently; or empty."""
        scheduler = self.engines.default
        if scheduler.failure or scheduler.failed_in_a_row <= self._tried:
            if not scheduler.failed_in_a_row:
                self._tried = SUSPICIOUS_FAILURES - 1
            return scheduler.failure
        self._tried = scheduler.failed_in_a_row
        try:
            async with asyncio.timeout(TRIAL_SECONDS):
                await asyncio.to_thread(self.trial, scheduler.engine)
        except Exception as error:  # a failed engine may raise anything
            name = scheduler.engine.name
            return f"the {name} engine failed {self._tried} batches in a row and a trial: {error}"
        return ""

    async def _recovery(self, stand_in: str) -> None:
        """Try to restart the engine until that succeeds, while the stand-in serves."""
        starting = asyncio.create_task(self.engines.get(stand_in))
        pause = FIRST_PAUSE_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_PAUSE_SECONDS)
            try:
                await self.engines.restart()
            except Exception as error:  # whatever the error, there will be another attempt
                kind = type(error).__name__
                _log.warning("%sno recovery yet: %s: %s", self.label, kind, error)
            else:
                break
        await asyncio.gather(starting, return_exceptions=True)
        _log.warning("%sthe %s engine serves again", self.label, self.engines.name)

    async def _try_stand_in(self) -> None:
        """Start the stand-in engine once, so that readiness knows whether it works."""
        if not (stand_in := self._stand_in()):
            return
        try:
            await asyncio.to_thread(self.engines.try_start, stand_in)
        except Exception as error:  # any error rules out the fallback
            failure = f"the {stand_in} engine, which would stand in, cannot start: {error}"
            self.fallback_failure = failure
            _log.error("%s%s", self.label, failure)

    def _stand_in(self) -> str | None:
        return "torch" if self.policy == "torch" and self.engines.name != "torch" else None

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.give_up(f"{self.label}the watch over the engine failed: {type(error).__name__}")
