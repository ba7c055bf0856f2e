"""The scheduler: admit, group, dispatch, drop.

One bounded queue a lane; a batch starts the moment a worker is idle and something waits, so a
text alone never waits for company and batches form only where there is a queue. Everything but
`Engine.run` happens on the event loop; nothing here polls, sleeps or holds a lock.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, Protocol

from service.collate import check_outputs
from service.engines.base import Engine, Output, Task
from service.errors import EngineFailed, EngineUnavailable, Overloaded, ServiceError, Unprocessable

LaneName = Literal["encode", "attention"]

_log = logging.getLogger("headscope")

LANE_SHARES: dict[LaneName, float] = {"encode": 3.0, "attention": 1.0}
"""How busy time is divided while both lanes wait: a flood of /attention leaves /encode 3/4."""
MAX_PADDING_SHARE = 0.1
"""A batch takes no text that would make more than this share of attention's grid padding."""


@dataclass(frozen=True)
class BatchLimits:
    """Bounds, in tokens."""

    max_batch_tokens: int
    """Of a batch; a longer text goes alone."""
    max_queue_tokens: int
    """Waiting in a lane."""


@dataclass(frozen=True)
class Done:
    """A text's output and what it took."""

    output: Output
    queue_seconds: float
    inference_seconds: float


class Observer(Protocol):
    """What the scheduler reports as it happens."""

    def batch_finished(
        self, lane: LaneName, tasks: Sequence[Task], waits: Sequence[float], seconds: float
    ) -> None:
        """A batch was computed; `waits` are its texts' queue times in seconds."""

    def batch_failed(self, lane: LaneName) -> None:
        """A batch ended in an error."""

    def dropped(self, lane: LaneName) -> None:
        """A text whose client left was dropped before it was computed."""


@dataclass(eq=False)
class Entry:
    """A text in a queue."""

    task: Task
    number: int
    future: asyncio.Future[Done]
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


class Batcher:
    """Feeds one engine from its lanes."""

    def __init__(self, engine: Engine, limits: BatchLimits, observer: Observer) -> None:
        self.engine = engine
        self.lanes = {name: Lane(name, share) for name, share in LANE_SHARES.items()}
        self.last_success: float = -math.inf
        """`time.monotonic()` of the last batch that was computed."""
        self._limits = limits
        self._observer = observer
        self._threads = ThreadPoolExecutor(engine.concurrency, f"{engine.name}-engine")
        self._idle = engine.concurrency
        self._numbers = itertools.count()
        self._tokens_per_second = 0.0
        self._virtual_time = 0.0
        """`served` of the lane that went last: where one that was empty starts, without credit."""
        self._running: set[asyncio.Task[None]] = set()

    async def submit(self, lane_name: LaneName, tasks: Sequence[Task]) -> list[Done]:
        """Compute the texts of one request, all or none.

        Cancelling the call drops whatever of it still waits.

        Raises:
            Unprocessable: the request alone exceeds the queue.
            Overloaded: the queue has no room for it now.
            ServiceError: the engine failed.

        """
        if not self.engine.alive:
            raise EngineUnavailable(f"the {self.engine.name} engine is down", retry_after_seconds=5)
        lane = self.lanes[lane_name]
        self._admit(lane, sum(task.tokens for task in tasks))
        loop, now = asyncio.get_running_loop(), time.monotonic()
        entries = [Entry(task, next(self._numbers), loop.create_future(), now) for task in tasks]
        if not lane.queued_tokens:
            lane.served = max(lane.served, self._virtual_time)
        for entry in entries:
            lane.push(entry)
        self._dispatch()
        try:
            return await asyncio.gather(*(entry.future for entry in entries))
        finally:
            for entry in entries:
                entry.future.cancel()
                if entry.waiting:
                    lane.remove(entry)
                    self._observer.dropped(lane.name)

    def close(self) -> None:
        """Wait for running batches, then release the engine."""
        self._threads.shutdown(wait=True)
        self.engine.close()

    def _admit(self, lane: Lane, tokens: int) -> None:
        limit = self._limits.max_queue_tokens
        if tokens > limit:
            raise Unprocessable(
                f"the request has {tokens} tokens; at most {limit} fit into the queue, "
                "send it in parts"
            )
        if lane.queued_tokens + tokens > limit:
            seconds = lane.queued_tokens / self._tokens_per_second if self._tokens_per_second else 1
            raise Overloaded(
                f"the queue holds {lane.queued_tokens} of {limit} tokens",
                retry_after_seconds=max(1, math.ceil(seconds)),
            )

    def _dispatch(self) -> None:
        while self._idle:
            waiting = [lane for lane in self.lanes.values() if lane.queued_tokens]
            if not waiting:
                return
            lane = min(waiting, key=lambda lane: lane.served)
            self._virtual_time = max(self._virtual_time, lane.served)
            batch = lane.take(self._limits.max_batch_tokens)
            self._idle -= 1
            task = asyncio.get_running_loop().create_task(self._compute(lane, batch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _compute(self, lane: Lane, batch: list[Entry]) -> None:
        started = time.monotonic()
        tasks = [entry.task for entry in batch]
        loop = asyncio.get_running_loop()
        error: ServiceError | None = None
        outputs: list[Output] = []
        try:
            outputs = await loop.run_in_executor(self._threads, self._run, tasks)
        except ServiceError as raised:
            error = raised
        except RuntimeError:  # of the executor, once it is shut down
            error = EngineUnavailable("the engine takes no more work", retry_after_seconds=5)
        seconds = time.monotonic() - started
        self._idle += 1
        lane.served += seconds / lane.share
        if error is None:
            self._account(sum(task.tokens for task in tasks), seconds)
            waits = [started - entry.queued_at for entry in batch]
            self._observer.batch_finished(lane.name, tasks, waits, seconds)
            for entry, output, wait in zip(batch, outputs, waits, strict=True):
                if not entry.future.done():
                    entry.future.set_result(Done(output, wait, seconds))
        else:
            _log.error("a batch of the %s lane failed", lane.name, exc_info=error)
            self._observer.batch_failed(lane.name)
            for entry in batch:
                if not entry.future.done():
                    entry.future.set_exception(copy.copy(error))
        self._dispatch()

    def _run(self, tasks: Sequence[Task]) -> list[Output]:
        try:
            outputs = self.engine.run(tasks)
            check_outputs(tasks, outputs)
        except ServiceError:
            raise
        except BaseException as error:  # some kinds cannot cross into a future, and would hang it
            raise EngineFailed(f"the engine raised {type(error).__name__}") from error
        return outputs

    def _account(self, tokens: int, seconds: float) -> None:
        self.last_success = time.monotonic()
        rate = tokens * self.engine.concurrency / max(seconds, 1e-6)
        weight = 0.1 if self._tokens_per_second else 1.0
        self._tokens_per_second += weight * (rate - self._tokens_per_second)
