"""Plan of the models that all workers of a service serve, in a file of their shared folder.

A worker that changes the models has all workers prepare the change, and writes the plan only if all
have. The others follow the plan within `FOLLOW_SECONDS`. So either all switch or none does, even if
the worker that wrote the plan is killed meanwhile. A restarted worker starts with the plan.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from service.settings import Settings

_log = logging.getLogger("headscope")
FOLLOW_SECONDS = 0.2
"""Time between two looks at the plan."""


class PlannedTarget(BaseModel):
    """Target of an alias."""

    model: str
    share: float


class PlannedVersions(BaseModel):
    """Loaded versions of a model, the current one first; none of an unloaded model."""

    number: int
    """Number of the plan that set these versions."""
    versions: list[str]


class Plan(BaseModel):
    """Versions and aliases that all workers serve."""

    model_config = ConfigDict(extra="forbid")

    number: int = 0
    """Number of the plan; each change adds 1."""
    loaded: dict[str, PlannedVersions] = {}
    """Versions by the model's name; only of models that were changed since the start."""
    config: int = 0
    """Number of the reloaded settings; 0 for the settings of the start."""
    aliases: dict[str, list[PlannedTarget]] = {}
    """Targets of the aliases that were changed; an empty list is a removed alias."""


class PlanFile:
    """File of the plan, which any worker reads and one at a time writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "models.json"
        self._read: tuple[int, Plan] = (0, Plan())

    def read(self) -> Plan:
        """Return the plan; empty before the first change."""
        try:
            changed = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return Plan()
        if changed != self._read[0]:
            self._read = changed, Plan.model_validate_json(self._path.read_bytes())
        return self._read[1]

    def settings(self, number: int) -> Settings:
        """Return the reloaded settings of a number."""
        return Settings.model_validate_json(self._settings_path(number).read_bytes())

    def write_settings(self, settings: Settings) -> int:
        """Write settings for all workers, and return the number that the plan may take next."""
        number = self.read().config + 1
        self._settings_path(number).write_text(settings.model_dump_json(), encoding="utf-8")
        return number

    def _settings_path(self, number: int) -> Path:
        return self._folder / f"settings-{number}.json"

    def change(self, change: Callable[[Plan], None]) -> None:
        """Change the plan in one step, while no other worker does.

        Args:
            change: function that changes the plan, which has its new number already.

        """
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for less than a millisecond
            plan = self.read().model_copy(deep=True)
            plan.number += 1
            change(plan)
            written = self._path.with_suffix(".new")
            written.write_text(plan.model_dump_json(), encoding="utf-8")
            written.replace(self._path)

    @contextlib.asynccontextmanager
    async def following(
        self, follow: Callable[[Plan], Awaitable[None]], look: Callable[[], None]
    ) -> AsyncIterator[None]:
        """Call a function with the plan, then with each new plan, while the block runs.

        Args:
            follow: function of the plan; it has been called once when the block begins.
            look: function called after each look at the plan.

        """
        plan = self.read()
        await follow(plan)

        async def watch(number: int) -> None:
            while True:
                await asyncio.sleep(FOLLOW_SECONDS)
                plan = self.read()
                if plan.number != number:
                    number = plan.number
                    try:
                        await follow(plan)
                    except Exception:  # or this worker would follow no later plan
                        _log.exception("plan %d of the workers is not followed", number)
                look()

        task = asyncio.create_task(watch(plan.number))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
