"""What waits for an engine: requests, their texts, and the queue of a lane. Nothing here locks."""

from __future__ import annotations

import asyncio
import copy
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from service.engines.base import Output, Task
from service.errors import ServiceError

LaneName = Literal["encode", "attention"]

LANE_SHARES: dict[LaneName, float] = {"encode": 3.0, "attention": 1.0}
"""How busy time is divided while both lanes wait: a flood of /attention leaves /encode 3/4."""
MAX_PADDING_SHARE = 0.1
"""A batch takes no text that would make more than this share of attention's grid padding."""


@dataclass(frozen=True)
class Done:
    """A text's output and what it took."""

    output: Output
    queue_seconds: float
    inference_seconds: float


class Submission:
    """The texts of one caller, answered or failed together, on the event loop that made it."""

    def __init__(self, tasks: Sequence[Task], numbers: Iterator[int]) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[Done]] = self.loop.create_future()
        now = time.monotonic()
        self.entries = [
            Entry(self, index, task, number, now)
            for index, (task, number) in enumerate(zip(tasks, numbers, strict=False))
        ]
        self._done: dict[int, Done] = {}
        """By index, as they come."""

    def answer(self, index: int, done: Done) -> None:
        """One of the texts is computed."""
        self._done[index] = done
        if len(self._done) == len(self.entries) and not self.future.done():
            self.future.set_result([self._done[entry.index] for entry in self.entries])

    def fail(self, error: ServiceError) -> None:
        """One of the texts cannot be computed."""
        if not self.future.done():
            self.future.set_exception(copy.copy(error))


@dataclass(eq=False, slots=True)
class Entry:
    """A text in a queue."""

    submission: Submission
    index: int
    """Which of its texts."""
    task: Task
    number: int
    """Which text of all: the smaller, the older."""
    queued_at: float
    waiting: bool = True


@dataclass
class Lane:
    """A queue, bucketed by length, with its share of busy time."""

    name: LaneName
    share: float
    queued_tokens: int = 0
    served: float = 0.0
    """Busy seconds so far, divided by the share; the lane with less goes first."""
    buckets: dict[int, OrderedDict[int, Entry]] = field(default_factory=dict)
    """Length → number → entry, oldest first; none is empty."""

    def push(self, entry: Entry) -> None:
        """Queue a text."""
        length = entry.task.tokens
        self.buckets.setdefault(length, OrderedDict())[entry.number] = entry
        self.queued_tokens += length

    def remove(self, entry: Entry) -> None:
        """The entry no longer waits: it was taken, or its client left."""
        length = entry.task.tokens
        bucket = self.buckets[length]
        del bucket[entry.number]
        if not bucket:
            del self.buckets[length]
        entry.waiting = False
        self.queued_tokens -= length

    def clear(self) -> list[Entry]:
        """Everything that waited; nothing does any more."""
        entries = [entry for bucket in self.buckets.values() for entry in bucket.values()]
        for entry in entries:
            self.remove(entry)
        return entries

    def take(self, max_batch_tokens: int) -> list[Entry]:
        """The oldest text and the queued ones nearest to its length, within the budget."""
        if not self.buckets:
            return []
        first = min(self.buckets, key=lambda length: next(iter(self.buckets[length])))
        batch: list[Entry] = []
        longest = real = 0
        for length in sorted(self.buckets, key=lambda length: (abs(length - first), length)):
            while bucket := self.buckets.get(length):
                if batch and real + length > max_batch_tokens:
                    break
                grid = max(longest, length) * (len(batch) + 1)
                if grid - real - length > MAX_PADDING_SHARE * grid:
                    break
                entry = next(iter(bucket.values()))
                self.remove(entry)
                batch.append(entry)
                longest, real = max(longest, length), real + length
        return batch
