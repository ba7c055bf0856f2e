"""Agreement of a service's workers on the models that they serve.

One worker gets the command. It has all others prepare the model, and writes the plan only if all
have; the others follow the plan. See `service.models.plan`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from service.artifacts.repository import Target
from service.errors import ModelNotLoadable, ServiceError, Unprocessable
from service.health.peers import Peers
from service.models.loading import ModelLoader
from service.models.plan import Plan, PlanFile, PlannedTarget, PlannedVersions
from service.models.served import ServedModel
from service.models.table import Models
from service.settings import Settings

PREPARE_SECONDS = 600.0
"""Maximum seconds in which a worker prepares a model."""
UNUSED_SECONDS = 60.0
"""Seconds after which a preparation for another worker is discarded unless a plan has it."""

_log = logging.getLogger("headscope")


class Follower(Protocol):
    """Control of a worker's models, which follows the plan."""

    models: Models
    loader: ModelLoader

    async def prepare(self, target: Target) -> ServedModel:
        """Start a version that gets no requests yet; return it, or the loaded one."""

    def is_current(self, model: ServedModel) -> bool:
        """Return whether a model was started with the settings that it has now."""

    def serve(self, model: ServedModel, *, current: bool) -> object:
        """Give a prepared model to new requests."""


class Workers:
    """Other workers of the service, and the plan of all; neither in a single process."""

    def __init__(self, peers: Peers | None) -> None:
        self._peers = peers
        self._file = PlanFile(peers.folder) if peers else None
        self._control: Follower | None = None
        self._prepared: dict[Target, tuple[ServedModel, float]] = {}
        """Models that get no requests yet, with the time of their preparation."""
        self._followed: dict[str, int] = {}
        """Number of the last followed plan by the model's name. Loads on demand and evictions after
        it stay in effect until a command changes the model again."""
        self.config = 0
        """Number of the settings that this worker has; see `Plan.config`."""
        self.follow_config: Callable[[int], Awaitable[bool]] | None = None
        """Function that applies the settings of a number, and returns whether it could."""

    def __bool__(self) -> bool:
        return self._peers is not None

    @contextlib.asynccontextmanager
    async def following(self, control: Follower) -> AsyncIterator[None]:
        """Follow the plan of all workers while the block runs, from its start on."""
        self._control = control
        if self._file is None:
            yield
            return
        async with self._file.following(self._follow, self._release_unused):
            yield

    async def prepare(self, model: ServedModel) -> None:
        """Have all other workers prepare the version of a model.

        Raises:
            ModelNotLoadable: a worker cannot; the message names it.

        """
        if self._peers is None:
            return
        asked = f"{model.artifact.sha256} {Target(model.name, model.version)}"
        answers = await self._peers.ask("prepare", PREPARE_SECONDS, asked)
        if failed := [f"worker {index}: {why}" for index, why in answers.items() if why]:
            raise ModelNotLoadable("; ".join(failed))

    async def answer_prepare(self, asked: str) -> str:
        """Prepare a version for another worker; return an empty text, or the error."""
        sha256, _, name = asked.partition(" ")
        target = Target.parse(name)
        assert self._control is not None  # noqa: S101 - set before others can ask
        try:
            model = await self._control.prepare(target)
        except ServiceError as error:
            return error.detail
        if model.artifact.sha256 != sha256:
            if model not in self._control.models:
                self._control.loader.retire(model)
            return f"{target} has changed since it was read by the other worker"
        if model not in self._control.models:
            if unused := self._prepared.pop(target, None):  # of a load that failed elsewhere
                self._control.loader.retire(unused[0])
            self._prepared[target] = model, time.monotonic()
        return ""

    def write_versions(self, name: str, versions: Sequence[str]) -> None:
        """Plan the versions of a model, the current one first; none unloads it."""

        def change(plan: Plan) -> None:
            plan.loaded[name] = PlannedVersions(number=plan.number, versions=list(versions))
            self._followed[name] = plan.number

        if self._file:
            self._file.change(change)

    def write_alias(self, alias: str, targets: Sequence[Target]) -> None:
        """Plan the targets of an alias; none removes it."""
        planned = [PlannedTarget(model=str(one), share=one.share) for one in targets]
        if self._file:
            self._file.change(lambda plan: plan.aliases.update({alias: planned}))

    def write_config(self, settings: Settings) -> int:
        """Write settings for the other workers; return their number."""
        return self._file.write_settings(settings) if self._file else 0

    def read_config(self, number: int) -> Settings:
        """Return the settings of a number."""
        assert self._file is not None  # noqa: S101 - another worker wrote them
        return self._file.settings(number)

    async def prepare_config(self, number: int) -> None:
        """Have all other workers prepare the settings of a number.

        Raises:
            Unprocessable: a worker cannot; the message names it.

        """
        if self._peers is None:
            return
        answers = await self._peers.ask("reload", PREPARE_SECONDS, str(number))
        if failed := [f"worker {index}: {why}" for index, why in answers.items() if why]:
            raise Unprocessable("; ".join(failed))

    def plan_config(self, number: int, aliases: Sequence[str], names: Sequence[str]) -> None:
        """Plan the settings of a number.

        Args:
            number: number of the settings, which this worker has already.
            aliases: aliases that the settings change.
            names: models whose loaded versions the settings choose.

        """

        def change(plan: Plan) -> None:
            plan.config = self.config = number
            for alias in aliases:
                plan.aliases.pop(alias, None)
            for name in names:
                plan.loaded.pop(name, None)

        if self._file:
            self._file.change(change)

    async def _follow(self, plan: Plan) -> None:
        """Apply the settings of the plan, serve its versions, and set its aliases."""
        control = self._control
        assert control is not None  # noqa: S101 - set before
        changed = plan.config != self.config
        if changed and self.follow_config and await self.follow_config(plan.config):
            self.config = plan.config
        for name, planned in plan.loaded.items():
            if planned.number > self._followed.get(name, 0):
                await self._follow_versions(control, name, planned)
        for alias, of_alias in plan.aliases.items():
            targets = [Target.parse(one.model, one.share) for one in of_alias]
            control.models.alias(alias, targets)

    async def _follow_versions(
        self, control: Follower, name: str, planned: PlannedVersions
    ) -> None:
        """Serve the planned versions of a model, and no others."""
        targets = [Target(name, version) for version in planned.versions]
        served = [
            await self._serve(control, target, current=target == targets[0]) for target in targets
        ]
        for model in control.models.versions(name):
            if model.version not in planned.versions:
                control.loader.retire(model)
        if all(served):
            self._followed[name] = planned.number

    async def _serve(self, control: Follower, target: Target, *, current: bool) -> bool:
        """Serve a version; return whether it could be prepared."""
        model, _ = self._prepared.pop(target, (None, 0.0))
        if model and not control.is_current(model):  # the configuration was reloaded meanwhile
            control.loader.retire(model)
            model = None
        try:
            model = model or control.models.find(target) or await control.prepare(target)
        except ServiceError as error:  # the next change of the plan tries it again
            _log.error("%s of the plan is not served: %s", target, error.detail)
            return False
        control.serve(model, current=current)
        return True

    def _release_unused(self) -> None:
        """Release prepared models that no plan has, as when another worker's load has failed."""
        latest = time.monotonic() - UNUSED_SECONDS
        for target, (model, prepared_at) in list(self._prepared.items()):
            if prepared_at < latest and self._control:
                del self._prepared[target]
                self._control.loader.retire(model)
