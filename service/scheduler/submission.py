"""What waits for an engine: the tasks of one caller, and their results."""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from service.engines.contract import Output, Task
from service.errors import ServiceError
from service.scheduler.promises import Promise
from service.system.budget import Reservation


@dataclass(frozen=True)
class TaskResult:
    """A text's output and what it took."""

    output: Any
    """An `Output`, or what the submission reduced it to."""
    queue_seconds: float
    inference_seconds: float


Reduce = Callable[[Output], Any]


def _ignore(_: str) -> None:
    """Ignore the name of an engine."""


@dataclass(frozen=True)
class Caller:
    """Who asks, and until when an answer is of use."""

    client: str = ""
    """Whoever shares one rate of service: a key, or an address."""
    finish_by: float = math.inf
    """`time.monotonic()` of the request's deadline."""
    promise: Promise | None = None
    """All that the request will submit, for which there has to be time."""
    submitted_to: Callable[[str], None] = field(default=_ignore, compare=False, repr=False)
    """Called with the name of the engine whose queue takes tasks of the request."""
    place: Promise | None = None
    """Tokens of its texts that were admitted before they were tokenised; see `hold_place`."""
    reservation: Reservation | None = None
    """Memory of the request; None where nothing is bounded, as for the service's own texts."""

    def correct_place(self, tokens: int) -> None:
        """Give back what was held for more tokens than the texts turned out to have."""
        if self.place and self.place.tokens > tokens:
            self.place.keep(self.place.tokens - tokens)


ANYBODY = Caller()


class Submission:
    """The tasks of one caller, answered or failed together, on the event loop that made it."""

    def __init__(
        self,
        tasks: Sequence[Task],
        numbers: Iterator[int],
        caller: Caller,
        reduce: Sequence[Reduce] | None = None,
        *,
        wait_seconds: float = math.inf,
    ) -> None:
        """Number the tasks.

        Args:
            tasks: at least one.
            numbers: the lane's next ones.
            caller: who asks.
            reduce: for each task, what becomes of its output in the worker's thread.
            wait_seconds: until something of it must have begun.

        """
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[TaskResult]] = self.loop.create_future()
        self.caller = caller
        self.queued_at = time.monotonic()
        self.start_by = min(self.queued_at + wait_seconds, caller.finish_by)
        self.begun = False
        """Something of it is being computed, or was."""
        self.predicted_seconds = 0.0
        """Time to its end that was predicted when it was admitted."""
        self.timer: asyncio.TimerHandle | None = None
        self.entries = [Entry(self, i, task, next(numbers)) for i, task in enumerate(tasks)]
        self.reduce = reduce
        self._done: dict[int, TaskResult] = {}
        """Results by index, as they come."""

    @property
    def due(self) -> float:
        """`time.monotonic()` at which it is given up."""
        return self.caller.finish_by if self.begun else self.start_by

    @property
    def seconds(self) -> float:
        """Seconds since it was queued."""
        return time.monotonic() - self.queued_at

    def answer(self, index: int, done: TaskResult) -> None:
        """One of the texts is computed."""
        self._done[index] = done
        if len(self._done) == len(self.entries) and not self.future.done():
            self.future.set_result([self._done[entry.index] for entry in self.entries])

    def release(self) -> None:
        """Nobody waits any more: entries and their submission no longer hold each other."""
        self.entries = []
        if self.timer:
            self.timer.cancel()

    def fail(self, error: ServiceError) -> None:
        """One of the texts cannot be computed."""
        if not self.future.done():
            self.future.set_exception(copy.copy(error))


@dataclass(eq=False, slots=True)
class Entry:
    """A task in a queue."""

    submission: Submission
    index: int
    """Index among its submission's tasks."""
    task: Task
    number: int
    """Sequence number: the smaller, the older; negative for maps of a text that was computed."""
    start: float = 0.0
    """Virtual time of its start, in the fair order."""
    waiting: bool = True

    def reduced(self, output: Output) -> Any:
        """What the submission wants of an output."""
        reduce = self.submission.reduce
        return output if reduce is None else reduce[self.index](output)
