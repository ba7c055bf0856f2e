"""Submissions to an engine: tasks of one caller, and their results."""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar, cast

from service.engines.contract import Output, Task
from service.errors import ServiceError
from service.scheduler.promises import Promise
from service.system.budget import Reservation

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)
Reduce = Callable[[Output], Value]
"""Function from a task's output to its value, called in the worker's thread."""


class TaskResult(NamedTuple, Generic[Value_co]):
    """Result of a task, and its times."""

    value: Value_co
    """The task's `Output`, or the reduction of it."""
    queue_seconds: float
    inference_seconds: float


def _ignore(_: str) -> None:
    """Ignore the name of an engine."""


@dataclass(frozen=True)
class Caller:
    """Client and deadline of a request, and its reserved tokens and memory."""

    client: str = ""
    """Name of the client for fair shares: an API key, or an address."""
    finish_by: float = math.inf
    """`time.monotonic()` of the request's deadline."""
    promise: Promise | None = None
    """All work that the request will submit, for which its deadline has to leave time."""
    submitted_to: Callable[[str], None] = field(default=_ignore, compare=False, repr=False)
    """Function that is called with the engine's name before tasks of the request are queued."""
    place: Promise | None = None
    """Tokens of the request's texts, admitted before tokenisation; see `Scheduler.hold_place`."""
    reservation: Reservation | None = None
    """Memory of the request; None without a bound, as for the service's own texts."""

    def correct_place(self, tokens: int) -> None:
        """Release the held tokens beyond the actual number of tokens."""
        if self.place and self.place.tokens > tokens:
            self.place.keep(self.place.tokens - tokens)


ANYBODY = Caller()


class Submission(Generic[Value_co]):
    """Tasks of one caller, which are answered or fail together, on the event loop of the caller."""

    def __init__(
        self,
        tasks: Sequence[Task],
        numbers: Iterator[int],
        caller: Caller,
        reduce: Sequence[Reduce[Value_co]] | None = None,
        *,
        wait_seconds: float = math.inf,
    ) -> None:
        """Number at least one task by the next sequence numbers.

        Without reductions, which are called in the worker's thread, the outputs are kept and
        `Value` is `Output`. The first task begins within `wait_seconds`.
        """
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[TaskResult[Value_co]]] = self.loop.create_future()
        self.caller = caller
        self.queued_at = time.monotonic()
        self.start_by = min(self.queued_at + wait_seconds, caller.finish_by)
        self.begun = False
        """Whether a task is being computed or was computed."""
        self.predicted_seconds = 0.0
        """Predicted seconds until the end, at admission."""
        self.timer: asyncio.TimerHandle | None = None
        self.entries = [Entry(self, i, task, next(numbers)) for i, task in enumerate(tasks)]
        self.reduce = reduce
        self._done: dict[int, TaskResult[Value_co]] = {}
        """Results so far, by index."""

    @property
    def due(self) -> float:
        """`time.monotonic()` at which the submission is cancelled."""
        return self.caller.finish_by if self.begun else self.start_by

    @property
    def seconds(self) -> float:
        """Seconds since the submission was queued."""
        return time.monotonic() - self.queued_at

    def answer(self, index: int, result: TaskResult[Value_co]) -> None:
        """Set the result of a task; resolve the future with the last one."""
        self._done[index] = result
        if len(self._done) == len(self.entries) and not self.future.done():
            self.future.set_result([self._done[entry.index] for entry in self.entries])

    def release(self) -> None:
        """Cancel the timer, and break the reference cycle of the submission and its entries."""
        self.entries = []
        if self.timer:
            self.timer.cancel()

    def fail(self, error: ServiceError) -> None:
        """Fail the submission with a copy of an error, unless it is done."""
        if not self.future.done():
            self.future.set_exception(copy.copy(error))


@dataclass(eq=False, slots=True)
class Entry(Generic[Value_co]):
    """Task in a queue."""

    submission: Submission[Value_co]
    index: int
    """Index of the task in its submission."""
    task: Task
    number: int
    """Sequence number, in the order of arrival; negative for maps of computed texts."""
    start: float = 0.0
    """Virtual time of its start in fair queueing."""
    waiting: bool = True

    def reduced(self, output: Output) -> Reduced[Value_co]:
        """Reduce an output as the submission requests. Runs in the worker's thread."""
        reduce = self.submission.reduce
        if reduce is None:
            return Reduced(self, cast(Value_co, output))  # see `Submission.__init__`
        return Reduced(self, reduce[self.index](output))


class Reduced(NamedTuple, Generic[Value_co]):
    """Computed entry, and its value."""

    entry: Entry[Value_co]
    value: Value_co

    def answer(self, began: float, seconds: float) -> None:
        """Set the result of the entry's task, whose batch began at `time.monotonic()`."""
        submission = self.entry.submission
        wait = began - submission.queued_at
        submission.answer(self.entry.index, TaskResult(self.value, wait, seconds))
