"""The scheduler: admit, dispatch, answer, drop.

One bounded queue a lane; a batch starts the moment a worker is idle and something waits, so a
text alone never waits for company and batches form only where there is a queue. A worker that
finishes takes its next batch itself, so an engine never waits for the event loop.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from service.collate import check_outputs
from service.engines.base import Engine, Task, TextTask
from service.errors import EngineFailed, EngineUnavailable, Overloaded, ServiceError, Unprocessable
from service.lanes import LANE_SHARES, Done, Entry, Lane, LaneName, Reduce, Submission

_log = logging.getLogger("headscope")


@dataclass(frozen=True)
class BatchLimits:
    """Bounds, in tokens."""

    max_batch_tokens: int
    """Of a batch; a longer text goes alone."""
    max_queue_tokens: int
    """Waiting in a lane."""


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


class Batcher:
    """Feeds one engine from its lanes.

    The lanes belong to `_lock`, which nobody holds for longer than it takes to move the texts of a
    batch. Requests are answered, and the observer is told, on the event loop.
    """

    def __init__(self, engine: Engine, limits: BatchLimits, observer: Observer) -> None:
        self.engine = engine
        self.lanes = {name: Lane(name, share) for name, share in LANE_SHARES.items()}
        self.last_success: float = -math.inf
        """`time.monotonic()` of the last batch that was computed."""
        self._limits = limits
        self._observer = observer
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(engine.concurrency, f"{engine.name}-engine")
        self._idle = engine.concurrency
        self._closed = False
        self._numbers = itertools.count()
        self._resumed = itertools.count(-(2**62))
        """Of what continues a request: before all others."""
        self._tokens_per_second = 0.0
        self._virtual_time = 0.0
        """`served` of the lane that went last: where one that was empty starts, without credit."""

    async def submit(self, lane_name: LaneName, tasks: Sequence[Task]) -> list[Done]:
        """Compute the tasks of one request, all or none.

        Cancelling the call drops whatever of it still waits.

        Raises:
            Unprocessable: the request alone exceeds the queue.
            Overloaded: the queue has no room for it now.
            ServiceError: the engine failed.

        """
        if not self.engine.alive:
            raise EngineUnavailable(f"the {self.engine.name} engine is down", retry_after_seconds=5)
        lane = self.lanes[lane_name]
        submission = Submission(tasks, self._numbers)
        with self._lock:
            self._admit(lane, sum(task.tokens for task in tasks))
            self._push(lane, submission.entries)
        return await self._finish(lane, submission)

    async def resume(
        self, lane_name: LaneName, tasks: Sequence[Task], reduce: Sequence[Reduce] | None = None
    ) -> list[Done]:
        """Compute more of a request that was admitted, before those that only wait to begin.

        Args:
            lane_name: its lane.
            tasks: what more.
            reduce: for each, what becomes of its output, in the worker's thread; it stays as it
                is when None.

        Raises:
            ServiceError: the engine failed.

        """
        lane = self.lanes[lane_name]
        submission = Submission(tasks, self._resumed, reduce)
        with self._lock:
            if self._closed:
                raise _closing()
            self._push(lane, submission.entries)
        return await self._finish(lane, submission)

    def close(self) -> None:
        """Refuse what waits, let running batches finish, then release the engine."""
        with self._lock:
            self._closed = True
            waiting = [entry for lane in self.lanes.values() for entry in lane.clear()]
        for entry in waiting:
            _on_loop(entry.submission, entry.submission.fail, _closing())
        self._threads.shutdown(wait=True)
        self.engine.close()

    def _push(self, lane: Lane, entries: Iterable[Entry]) -> None:
        if not lane.queued_tokens:
            lane.served = max(lane.served, self._virtual_time)
        for entry in entries:
            lane.push(entry)
        while self._idle and (taken := self._take()):
            self._idle -= 1
            self._threads.submit(self._work, *taken)

    async def _finish(self, lane: Lane, submission: Submission) -> list[Done]:
        try:
            return await submission.future
        finally:
            self._dropped(lane, self._withdraw(lane, submission))
            submission.release()

    def _admit(self, lane: Lane, tokens: int) -> None:
        if self._closed:
            raise _closing()
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

    def _withdraw(self, lane: Lane, submission: Submission) -> int:
        """Take what waits of a submission out of its queue; returns how many texts are dropped."""
        with self._lock:
            waiting = [entry for entry in submission.entries if entry.waiting]
            for entry in waiting:
                lane.remove(entry)
        return sum(isinstance(entry.task, TextTask) for entry in waiting)

    def _dropped(self, lane: Lane, texts: int) -> None:
        for _ in range(texts):
            self._observer.dropped(lane.name)

    def _take(self) -> tuple[Lane, list[Entry]] | None:
        """The next batch, from the lane that is furthest below its share. Under the lock."""
        waiting = [lane for lane in self.lanes.values() if lane.queued_tokens]
        if not waiting:
            return None
        lane = min(waiting, key=lambda lane: lane.served)
        self._virtual_time = max(self._virtual_time, lane.served)
        return lane, lane.take(self._limits.max_batch_tokens)

    def _work(self, lane: Lane, batch: list[Entry]) -> None:
        """Compute a batch, and others for as long as something waits. In a worker's thread."""
        taken: tuple[Lane, list[Entry]] | None = (lane, batch)
        while taken:
            lane, batch = taken
            seconds = self._compute(lane, batch)
            with self._lock:
                lane.served += seconds / lane.share
                taken = self._take()
                if not taken:
                    self._idle += 1

    def _compute(self, lane: Lane, batch: list[Entry]) -> float:
        """One batch, answered on the event loop; returns the seconds that it took."""
        started = time.monotonic()
        tasks = [entry.task for entry in batch]
        try:
            outputs = self._run(batch, tasks)
        except ServiceError as error:
            seconds = time.monotonic() - started
            dropped = sum(self._withdraw(lane, entry.submission) for entry in batch)
            _on_loop(batch[0].submission, self._fail, lane, batch, error, dropped)
        else:
            seconds = time.monotonic() - started
            self._account(sum(task.tokens for task in tasks), seconds)
            _on_loop(batch[0].submission, self._answer, lane, batch, outputs, started, seconds)
        return seconds

    def _run(self, batch: list[Entry], tasks: Sequence[Task]) -> list[Any]:
        try:
            outputs = self.engine.run(tasks)
            check_outputs(tasks, outputs)
            return [entry.reduced(output) for entry, output in zip(batch, outputs, strict=True)]
        except ServiceError:
            raise
        except BaseException as error:  # whatever it is, its callers must hear of it
            raise EngineFailed(f"the engine raised {type(error).__name__}") from error

    def _account(self, tokens: int, seconds: float) -> None:
        rate = tokens * self.engine.concurrency / max(seconds, 1e-6)
        with self._lock:
            self.last_success = time.monotonic()
            weight = 0.1 if self._tokens_per_second else 1.0
            self._tokens_per_second += weight * (rate - self._tokens_per_second)

    def _answer(
        self, lane: Lane, batch: list[Entry], outputs: list[Any], started: float, seconds: float
    ) -> None:
        waits = [started - entry.queued_at for entry in batch]
        for entry, output, wait in zip(batch, outputs, waits, strict=True):
            entry.submission.answer(entry.index, Done(output, wait, seconds))
        self._observer.batch_finished(lane.name, [entry.task for entry in batch], waits, seconds)

    def _fail(self, lane: Lane, batch: list[Entry], error: ServiceError, dropped: int) -> None:
        _log.error("a batch of the %s lane failed", lane.name, exc_info=error)
        for entry in batch:
            entry.submission.fail(error)
        self._observer.batch_failed(lane.name)
        self._dropped(lane, dropped)


def _on_loop(submission: Submission, call: Callable[..., None], *arguments: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        submission.loop.call_soon_threadsafe(call, *arguments)


def _closing() -> EngineUnavailable:
    return EngineUnavailable("the service is stopping", retry_after_seconds=5)
