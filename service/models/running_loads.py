"""Loads that are running: one for each model, which later requests for the same version join."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Set
from dataclasses import dataclass, field
from typing import Any

from service.artifacts.repository import Target
from service.errors import ModelBusy
from service.models.loading import cancelled
from service.models.served import ServedModel

FIRST_LOAD_SECONDS = 5.0
"""Expected seconds of a load before one was measured."""


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

        Args:
            target: version to load.
            outcome: use of the model after the load; a running load of the version for another use
                ends first.
            work: the load.

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
