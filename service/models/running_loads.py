"""Loads of models: running ones, which later requests of the version join, and failed ones."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Set
from dataclasses import dataclass, field
from typing import Any

from service.artifacts.repository import Target
from service.errors import Forbidden, InsufficientMemory, ModelBusy, ModelNotLoaded
from service.models.loading import cancelled
from service.models.served import ServedModel
from service.telemetry.registry import Registry

FAILED_SECONDS = 30.0
"""Time for which requests do not repeat a failed load."""
FULL_SECONDS = 5.0
"""Time for which requests do not repeat a load that had too little memory or no export."""
FAILED = "cannot be loaded: the service's log has the reason"
"""Reason for callers without an admin key: the real one may contain paths of the service."""
FIRST_LOAD_SECONDS = 5.0
"""Expected seconds of a load before one was measured."""
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
    """Load that is running."""

    target: Target
    outcome: object
    """Use of the model after the load; only loads for the same use join."""
    task: asyncio.Task[Loaded] = field(init=False)
    began: float = field(default_factory=time.monotonic)
    opens: float = field(default_factory=time.monotonic)
    """`time.monotonic()` at which the checkpoint is, or is expected to be, exported."""

    def busy(self) -> ModelBusy:
        """Return the error of a command that has to wait for the end of the load."""
        seconds = time.monotonic() - self.began
        return ModelBusy(f"{self.target} has been loading for {seconds:.0f} s: wait for its end")


class RunningLoads:
    """Running loads by the model's name, for use on the event loop."""

    def __init__(self) -> None:
        self._loads: dict[str, RunningLoad] = {}
        self._expected_seconds = FIRST_LOAD_SECONDS

    @property
    def names(self) -> Set[str]:
        """Names of the models that are being loaded."""
        return self._loads.keys()

    @property
    def targets(self) -> list[Target]:
        """Versions that are being loaded; without a version, the newest."""
        return [load.target for load in self._loads.values()]

    def __contains__(self, target: Target) -> bool:
        """Return whether a version is being loaded; a load without a version counts for each."""
        load = self._loads.get(target.name)
        return load is not None and load.target in (target, Target(target.name))

    def of(self, name: str) -> RunningLoad | None:
        """Return the running load of a model; None without one."""
        return self._loads.get(name)

    def seconds_left(self, name: str) -> int:
        """Return the expected seconds until a model is loaded: at least 1, and a quarter more."""
        if (load := self._loads.get(name)) is None:
            return 1
        now = time.monotonic()
        return max(1, round(max(self._expected_seconds + load.opens - now, (now - load.began) / 4)))

    def expect_export(self, name: str, seconds: float) -> None:
        """Set the expected seconds until the checkpoint of a running load is exported."""
        if load := self._loads.get(name):
            load.opens = time.monotonic() + seconds

    async def run(
        self, target: Target, outcome: object, work: Coroutine[Any, Any, Loaded]
    ) -> Loaded:
        """Run a load, or join the same load that is running.

        A running load of the version with another `outcome`, the use after it, ends first.
        """
        while (load := self._loads.get(target.name)) and load.target == target:
            if load.outcome == outcome:
                break
            await asyncio.wait([load.task])
        if load is None:
            load = self._loads[target.name] = RunningLoad(target, outcome)
            load.task = asyncio.create_task(work)
            load.task.add_done_callback(lambda _: self._loads.pop(target.name))
        else:
            work.close()
            if load.target != target:
                raise load.busy()
        return await asyncio.shield(load.task)

    def measured(self, name: str) -> None:
        """Record the duration of a load after its export, which the next is expected to have."""
        self._expected_seconds = time.monotonic() - self._loads[name].opens

    async def cancel(self) -> None:
        """Cancel all loads, and wait for their end."""
        await cancelled(load.task for load in self._loads.values())


@dataclass(frozen=True)
class _Failure:
    """Failed load of a version."""

    reason: str
    """Reason for admins."""
    until: float
    """`time.monotonic()` until which requests do not repeat the load."""
    error: InsufficientMemory | Forbidden | None = None
    """Error of the load if there was too little memory or no export."""


class Failures:
    """Last failed load of each version."""

    def __init__(self, metrics: Registry) -> None:
        self._metrics = metrics
        self._failed: dict[Target, _Failure] = {}

    def reason(self, target: Target) -> str:
        """Return the reason of the last load of a version, for admins; empty if it succeeded."""
        failure = self._failed.get(target)
        return failure.reason if failure else ""

    def record(self, targets: tuple[Target, Target], error: Exception) -> None:
        """Log, count and keep the error of a load.

        `targets` are the version as it was asked for, and as the repository has it.
        """
        _log.error("%s cannot be loaded: %s", targets[1], error)
        kept = error if isinstance(error, InsufficientMemory | Forbidden) else None
        reason = {InsufficientMemory: "memory", Forbidden: "refused"}.get(type(error), "invalid")
        self._metrics.model_load_failures.labels(reason).inc()
        until = time.monotonic() + (FULL_SECONDS if kept else FAILED_SECONDS)
        self._failed.update(dict.fromkeys(targets, _Failure(str(error), until, kept)))

    def forget(self, targets: tuple[Target, Target]) -> None:
        """Forget the failures of a version that is loaded now."""
        for target in targets:
            self._failed.pop(target, None)

    def check(self, target: Target) -> None:
        """Raise the error of a load if it failed a short time ago."""
        failure = self._failed.get(target)
        if failure is None or (left := failure.until - time.monotonic()) <= 0:
            return
        if isinstance(failure.error, Forbidden):
            raise Forbidden(failure.reason)
        if failure.error:
            raise failure.error.public_error()
        raise ModelNotLoaded(str(target), FAILED, retry_after_seconds=max(1, round(left)))
