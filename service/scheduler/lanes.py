"""What waits for an engine: requests, their texts, and the queue of a lane. Nothing here locks."""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from service.engines.contract import Output, Task
from service.errors import ServiceError
from service.scheduler.pace import Pace

LaneName = Literal["encode", "attention"]

LANE_SHARES: dict[LaneName, float] = {"encode": 3.0, "attention": 1.0}
"""How busy time is divided while both lanes wait: a flood of /attention leaves /encode 3/4."""
MAX_PADDING_SHARE = 0.1
"""A batch takes no text that would make more than this share of attention's grid padding."""


@dataclass(frozen=True)
class TaskResult:
    """A text's output and what it took."""

    output: Any
    """An `Output`, or what the submission reduced it to."""
    queue_seconds: float
    inference_seconds: float


Reduce = Callable[[Output], Any]


class Submission:
    """The tasks of one caller, answered or failed together, on the event loop that made it."""

    def __init__(
        self,
        tasks: Sequence[Task],
        numbers: Iterator[int],
        reduce: Sequence[Reduce] | None = None,
        *,
        wait_seconds: float = math.inf,
        finish_by: float = math.inf,
    ) -> None:
        """Number the tasks.

        Args:
            tasks: at least one.
            numbers: the lane's next ones.
            reduce: for each task, what becomes of its output in the worker's thread.
            wait_seconds: until something of it must have begun.
            finish_by: `time.monotonic()` at which all of it must be done.

        """
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[TaskResult]] = self.loop.create_future()
        now = time.monotonic()
        self.finish_by = finish_by
        self.start_by = min(now + wait_seconds, finish_by)
        self.begun = False
        """Something of it is being computed, or was."""
        self.timer: asyncio.TimerHandle | None = None
        self.entries = [
            Entry(self, index, task, next(numbers), now) for index, task in enumerate(tasks)
        ]
        self.reduce = reduce
        self._done: dict[int, TaskResult] = {}
        """Results by index, as they come."""

    @property
    def due(self) -> float:
        """`time.monotonic()` at which it is given up."""
        return self.finish_by if self.begun else self.start_by

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
    """Sequence number: the smaller, the older; negative for a task that continues a request."""
    queued_at: float
    waiting: bool = True

    def reduced(self, output: Output) -> Any:
        """What the submission wants of an output."""
        reduce = self.submission.reduce
        return output if reduce is None else reduce[self.index](output)


Buckets = dict[int, OrderedDict[int, Entry]]
"""Length → number → entry, oldest first; none is empty."""


@dataclass
class Lane:
    """A queue, bucketed by length, with its share of busy time."""

    name: LaneName
    share: float
    queued_tokens: int = 0
    queued_texts: int = 0
    pace: Pace = field(default_factory=Pace)
    served: float = 0.0
    """Busy seconds so far, divided by the share; the lane with less goes first."""
    buckets: Buckets = field(default_factory=dict)
    resumed: Buckets = field(default_factory=dict)
    """What continues a request that began; it goes before what waits to begin."""

    def push(self, entry: Entry) -> None:
        """Queue a task."""
        length = entry.task.tokens
        self._queue_of(entry).setdefault(length, OrderedDict())[entry.number] = entry
        self.queued_tokens += length
        self.queued_texts += 1

    def remove(self, entry: Entry) -> None:
        """The entry no longer waits: it was taken, or its client left."""
        length = entry.task.tokens
        queue = self._queue_of(entry)
        del queue[length][entry.number]
        if not queue[length]:
            del queue[length]
        entry.waiting = False
        self.queued_tokens -= length
        self.queued_texts -= 1

    def clear(self) -> list[Entry]:
        """Everything that waited; nothing does any more."""
        queues = (self.resumed, self.buckets)
        entries = [one for queue in queues for bucket in queue.values() for one in bucket.values()]
        for entry in entries:
            self.remove(entry)
        return entries

    def take(self, max_batch_tokens: int) -> list[Entry]:
        """The oldest text and the queued ones nearest to its length, within the budget.

        What should have begun by now leaves the queue and is not in the batch.
        """
        queue = self.resumed or self.buckets
        if not queue:
            return []
        now = time.monotonic()
        first = min(queue, key=lambda length: next(iter(queue[length])))
        batch: list[Entry] = []
        longest = real = 0
        for length in sorted(queue, key=lambda length: (abs(length - first), length)):
            while bucket := queue.get(length):
                if batch and real + length > max_batch_tokens:
                    break
                grid = max(longest, length) * (len(batch) + 1)
                if grid - real - length > MAX_PADDING_SHARE * grid:
                    break
                entry = next(iter(bucket.values()))
                self.remove(entry)
                if entry.submission.due <= now:
                    continue
                entry.submission.begun = True
                batch.append(entry)
                longest, real = max(longest, length), real + length
        return batch

    def _queue_of(self, entry: Entry) -> Buckets:
        return self.resumed if entry.number < 0 else self.buckets
