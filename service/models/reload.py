"""Reload of the file of settings while the service runs.

    read        read the file, with the flags of the start and the variables; refuse mistakes
    prepare     start the models that are new or have changed settings, in all workers
    apply       apply all changes in one step of the event loop

A failure changes nothing. docs/decisions/0051-reload.md says what needs a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

from service.errors import ConfigBusy, ServiceError, UnknownModel, Unprocessable
from service.http.keys import ApiKeys, keys_of
from service.models.config_checks import check_content
from service.models.replacements import Replaced, Replacements
from service.models.state import ServiceState
from service.models.workers import UNUSED_SECONDS
from service.settings import Settings
from service.settings.changes import Changes, changes_of, read_again
from service.system import logs
from service.system.machine import threads_of_worker

LOCK = "reload.lock"
DETAIL_CHARACTERS = 3000
"""Maximum characters of an error message."""

_log = logging.getLogger("headscope")


@dataclass(frozen=True)
class Reloaded:
    """Outcome of a reload."""

    changes: Changes
    models: Replaced
    seconds: float


@dataclass(frozen=True)
class _Prepared:
    """Settings that are ready to apply."""

    settings: Settings
    keys: ApiKeys | None
    models: Replacements


class Reload:
    """Reload of the settings of a process and of the other workers, for use on its event loop."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._workers = state.control.workers
        self._workers.follow_config = self._follow
        self._runs = False
        self._asked: tuple[int, _Prepared] | None = None
        """Number of the configuration that another worker reloads, and its preparation."""

    async def __call__(self) -> Reloaded:
        """Read the file again, and apply it in all workers, or change nothing.

        Raises:
            ConfigBusy: another reload is running.
            Unprocessable: the file is invalid; the message has the lines and columns. Or a worker
                cannot start a model.
            InsufficientMemory: the models do not fit into the budget beside the old ones.

        """
        outcome = self._state.metrics.service.config_reloads
        try:
            with self._alone():
                reloaded = await self._reload()
        except ServiceError as error:
            outcome.labels("refused").inc()
            _log.error("the configuration is not reloaded: %s", error.detail)
            raise
        outcome.labels("applied").inc()
        changes, models = reloaded.changes, reloaded.models
        _log.info("the configuration is reloaded: %s", "; ".join(changes.applied) or "no change")
        for what, names in (("unloaded", models.unloaded), ("replaced", models.replaced)):
            if names:
                _log.info("%s: %s", what, ", ".join(names))
        if changes.restart:
            _log.warning("changes that need a restart: %s", "; ".join(changes.restart))
        return reloaded

    async def by_signal(self) -> None:
        """Reload after SIGHUP; log the error if the reload fails."""
        with contextlib.suppress(ServiceError):
            await self()

    async def answer(self, asked: str) -> str:
        """Prepare the settings of another worker's reload; return an empty text, or the error."""
        if self._asked:
            self._asked[1].models.discard()
            self._asked = None
        try:
            prepared = await self._prepare(self._workers.read_config(int(asked)))
        except ServiceError as error:
            return error.detail
        self._asked = int(asked), prepared
        asyncio.get_running_loop().call_later(UNUSED_SECONDS, self._discard, prepared)
        return ""

    async def _reload(self) -> Reloaded:
        began, state = time.monotonic(), self._state
        try:
            changes = await asyncio.to_thread(self._read)
        except (ValueError, OSError) as error:
            raise Unprocessable(_shortened(str(error))) from None
        prepared = await self._prepare(changes.settings)
        try:
            number = self._workers.write_config(changes.settings)
            await self._workers.prepare_config(number)
            await prepared.models.prepare()  # models that requests have loaded meanwhile
        except BaseException:
            prepared.models.discard()
            raise
        self._workers.plan_config(
            number, prepared.models.changed_aliases(), prepared.models.changed_names()
        )
        replaced = self._apply(prepared)
        state.metrics.service.limited(state.settings)
        return Reloaded(changes, replaced, time.monotonic() - began)

    def _read(self) -> Changes:
        current = self._state.settings
        new, content = read_again(current)
        check_content(new, content)
        if current.workers > 1:
            new = new.model_copy(
                update={"threads": threads_of_worker(new.threads, current.workers)}
            )
        return changes_of(current, new, content)

    async def _prepare(self, settings: Settings) -> _Prepared:
        """Prepare settings in this process.

        Raises:
            Unprocessable: keys cannot be read, an alias is invalid, or a model cannot be started.
            InsufficientMemory: the models do not fit into the budget.

        """
        control = self._state.control
        try:
            keys = await asyncio.to_thread(keys_of, settings)
            models = Replacements(control, control.setup.of_settings(settings))
        except ValueError as error:
            raise Unprocessable(_shortened(str(error))) from None
        try:
            await models.prepare()
        except BaseException as error:
            models.discard()
            if isinstance(error, UnknownModel):
                raise Unprocessable(_shortened(f"models: {error}")) from None
            raise
        return _Prepared(settings, keys, models)

    def _apply(self, prepared: _Prepared) -> Replaced:
        """Apply prepared settings at once."""
        state, settings = self._state, prepared.settings
        old, state.settings = state.settings, settings
        state.bodies.limit = settings.max_body_bytes_in_flight
        state.replies.limit = settings.max_bytes_in_flight
        if state.admission:
            state.admission.configure(settings, prepared.keys)
        if (old.log_level, old.log_format) != (settings.log_level, settings.log_format):
            logs.configure(settings.log_level, settings.log_format)
        return prepared.models.apply()

    async def _follow(self, number: int) -> bool:
        """Apply the settings of the plan; return whether that worked."""
        asked, self._asked = self._asked, None
        try:
            if asked and asked[0] == number:
                prepared = asked[1]
                await prepared.models.prepare()
            else:
                prepared = await self._prepare(self._workers.read_config(number))
        except ServiceError as error:  # tried again with the next change of the plan
            _log.error("the configuration of the other workers is not applied: %s", error.detail)
            return False
        self._apply(prepared)
        self._state.metrics.service.limited(self._state.settings)
        return True

    def _discard(self, prepared: _Prepared) -> None:
        if self._asked and self._asked[1] is prepared:
            self._asked = None
            prepared.models.discard()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of all workers while the block runs.

        Raises:
            ConfigBusy: another reload holds it.

        """
        if self._runs:
            raise ConfigBusy("the configuration is being reloaded: wait for its end")
        self._runs = True
        try:
            with contextlib.ExitStack() as stack:
                if peers := self._state.peers:
                    lock = stack.enter_context((peers.folder / LOCK).open("w"))
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        why = "another worker reloads the configuration: wait for its end"
                        raise ConfigBusy(why) from None
                yield
        finally:
            self._runs = False


def _shortened(message: str) -> str:
    return message if len(message) <= DETAIL_CHARACTERS else message[:DETAIL_CHARACTERS] + "…"
