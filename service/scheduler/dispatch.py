"""Dispatch of batches from the lanes to worker threads, and of their results to the event loop.

A batch starts as soon as a worker is idle and a task waits. A worker takes its next batch itself,
so an engine never waits for the event loop. If an engine allows spare calls, a short text whose
turn it is runs beside long batches instead of after them.

A batch that fails is halved recursively. A text that an engine cannot compute therefore only delays
the other texts of its batch, and no text fails by an error that occurs once.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Protocol

from service.engines.contract import Engine, Output, Task, TextTask
from service.errors import EngineFailed, EngineOutOfMemory, EngineUnavailable, ServiceError
from service.scheduler.call import RefusalReason
from service.scheduler.lanes import BatchLimits, Lane, LaneName
from service.scheduler.outputs import check_outputs
from service.scheduler.queue import Slot, Work
from service.system.resources import lower_priority

MOST_RUNS = 16
"""Maximum runs of one batch: enough to find one failing text among 128. After the last run, all
remaining texts fail."""
CLOSE_SECONDS = 5.0
"""Maximum seconds for which `Dispatcher.close` waits for running batches."""
SHORT_TOKENS, LONG_TOKENS = 64, 128
"""Maximum tokens of a short batch, and minimum tokens of the batches beside which it may run."""
Inspect = Callable[[Sequence[Task], Sequence[Output]], None]
"""Function of a batch and its outputs, called in the worker's thread."""
Slots = Sequence[Slot[object]]

_log = logging.getLogger("headscope")


class Observer(Protocol):
    """Receiver of the events of a model's schedulers and inputs, for metrics."""

    def tokenized(self, lengths: Sequence[int], warnings: Mapping[str, int]) -> None:
        """Count the tokens of each text of a request, and its texts by name of their warning."""

    def pictures_read(self, seconds: float) -> None:
        """Record the seconds until the pictures of a request were decoded and prepared."""

    def batch_finished(self, lane: LaneName, tasks: Sequence[Task], seconds: float) -> None:
        """Count a computed batch."""

    def batch_failed(self, lane: LaneName) -> None:
        """Count a failed batch, or a failed part of a batch."""

    def dropped(self, lane: LaneName) -> None:
        """Count a text that was dropped from the queue since its request ended."""

    def waited(self, lane: LaneName, seconds: float) -> None:
        """Record the seconds until a request's first batch began, or until its wait was over."""

    def restarted(self) -> None:
        """Count a restart of a failed engine."""

    def refused(self, lane: LaneName, reason: RefusalReason) -> None:
        """Count a request that was refused, or that waited for too long."""


class Batch:
    """Tasks that a worker computes together."""

    __slots__ = ("began", "lane", "slots", "spare", "tokens")

    def __init__(self, lane: Lane, slots: Slots, *, spare: bool) -> None:
        self.lane = lane
        self.slots = slots
        self.spare = spare
        """Whether a worker for short batches computes it, beside long ones."""
        self.began = time.monotonic()
        """`time.monotonic()` when the tasks left the queue."""
        self.tokens = sum([slot.tokens for slot in slots])


class Dispatcher:
    """Lanes of an engine, and a worker thread for each concurrent call that the engine allows.

    `lock` guards the lanes, the numbers of idle workers and the running batches. It is held only
    while tasks are queued or taken, not while they are computed.
    """

    def __init__(
        self, engine: Engine, limits: BatchLimits, observer: Observer, inspect: Inspect | None
    ) -> None:
        """Initialise without a thread; `inspect` gets batches before their reduction."""
        self.lanes: dict[LaneName, Lane] = {
            "encode": Lane("encode", limits, engine),
            "attention": Lane("attention", limits, engine),
        }
        encode, attention = self.lanes.values()
        encode.other, attention.other = attention, encode
        self.lock = threading.Lock()
        self.last_success: float = -math.inf
        """`time.monotonic()` of the last batch, or part of one, that was computed."""
        self.failed_in_a_row = 0
        """Number of failed batches, or parts, since the last computed one."""
        self.crash = ""
        """Name of the exception that ended a batch unexpectedly."""
        self.closed = ""
        """Reason why all requests are refused; empty while the dispatcher is open."""
        self.idle = engine.concurrency
        """Number of idle workers for any batch."""
        self._spare = engine.spare_calls
        """Number of idle workers for short batches only."""
        self._engine = engine
        self._limits = limits
        self._observer = observer
        self._inspect = inspect
        self._threads: list[threading.Thread] = []
        self._begun: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        """Batches of idle workers; None ends a worker."""
        self._running: set[Batch] = set()
        self._virtual_time = 0.0
        """`served` of the lane last computed, at which an empty lane restarts without credit."""

    def push(self, lane: Lane, work: Work[object], *, maps: bool = False) -> None:
        """Queue tasks, and start idle workers. The caller holds the lock.

        Raises:
            EngineUnavailable: the dispatcher is closed.

        """
        if self.closed:
            raise EngineUnavailable(self.closed, retry_after_seconds=5)
        if not lane.texts and not lane.maps.order:
            lane.served = max(lane.served, self._virtual_time)
        lane.push(work, maps=maps)
        while self.idle and (batch := self._take()):
            self.idle -= 1
            self._start(batch)
        while self._spare and (batch := self._take(spare=True)):
            self._spare -= 1
            self._start(batch)

    def withdraw(self, lane: Lane, work: Work[object]) -> int:
        """Remove the waiting tasks of some work from the queue; return the number of texts."""
        with self.lock:
            waiting = [slot for slot in work.slots if slot.waiting]
            for slot in waiting:
                lane.remove(slot)
        return sum(isinstance(slot.task, TextTask) for slot in waiting)

    def overdue(self) -> list[Batch]:
        """Return the running batches that take longer than `batch_seconds`."""
        latest = time.monotonic() - self._limits.batch_seconds
        with self.lock:
            return [batch for batch in self._running if batch.began < latest]

    def close(self, why: str) -> bool:
        """Fail waiting and later work, and end the workers; return whether all have ended.

        Wait at most `CLOSE_SECONDS` for running batches, and not at all if one is overdue.
        """
        with self.lock:
            self.closed = why
            waiting = [work for lane in self.lanes.values() for work in lane.clear()]
        for work in waiting:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
                stopped = EngineUnavailable(why, retry_after_seconds=5)
                work.future.get_loop().call_soon_threadsafe(work.fail, stopped)
        ends = time.monotonic() + (0 if self.overdue() else CLOSE_SECONDS)
        for _ in self._threads:
            self._begun.put(None)
        for thread in self._threads:
            thread.join(max(0, ends - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _start(self, batch: Batch) -> None:
        """Pass a batch to an idle worker. The caller holds the lock."""
        self._begun.put(batch)
        if len(self._threads) < len(self._running):
            name = f"{self._engine.name}-engine_{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _take(self, *, spare: bool = False) -> Batch | None:
        """Take a batch from the lane furthest below its share. The caller holds the lock.

        A `spare` call takes a short batch, if all running ones are long.
        """
        tokens = [batch.tokens for batch in self._running] if spare else ()
        if spare and (len(tokens) < self._engine.concurrency or min(tokens) < LONG_TOKENS):
            return None
        while waiting := [
            lane
            for lane in self.lanes.values()
            if (lane.texts or lane.maps.order) and not (spare and lane.first_tokens > SHORT_TOKENS)
        ]:
            lane = min(waiting, key=attrgetter("served"))
            self._virtual_time = max(self._virtual_time, lane.served)
            most = SHORT_TOKENS if spare else self._limits.max_batch_tokens
            if slots := lane.next_batch(most, beside=spare):
                batch = Batch(lane, slots, spare=spare)
                self._running.add(batch)
                return batch
        return None

    def _serve(self) -> None:
        """Compute batches until the dispatcher is closed. Runs in a worker's thread."""
        lower_priority()
        while following := self._begun.get():
            while following:
                following = self._work(following)

    def _work(self, batch: Batch) -> Batch | None:
        """Compute a batch, and return the next one if tasks wait."""
        try:
            self._compute(batch)
            with self.lock:
                self._running.remove(batch)
                batch.lane.served += (time.monotonic() - batch.began) / batch.lane.share
                following = self._take(spare=batch.spare)
                if not following:
                    self._spare += batch.spare
                    self.idle += not batch.spare
                return following
        except BaseException as error:
            with self.lock:
                self._running.discard(batch)
                self.crash = type(error).__name__
            _log.critical("a worker of the %s engine ended", self._engine.name, exc_info=error)
            failed = EngineFailed(f"the scheduler failed: {self.crash}")
            self._finished(batch, batch.slots, 0.0, failed)
            return None

    def _compute(self, batch: Batch) -> None:
        """Compute a batch, in halves if it fails."""
        parts, runs = [batch.slots], 0
        while parts:
            slots, began = parts.pop(), time.monotonic()
            if runs:
                slots = [slot for slot in slots if not slot.work.future.done()]
            if not slots:
                continue
            runs += 1
            try:
                self._run(slots)
            except ServiceError as error:
                if halves := _halves(slots, error, runs):
                    parts += halves
                    continue
                with self.lock:
                    self.failed_in_a_row += 1
                self._finished(batch, slots, 0.0, error)
                continue
            now = time.monotonic()
            with self.lock:
                self.failed_in_a_row, self.last_success = 0, now
                batch.lane.account(slots, now - began)
            self._finished(batch, slots, now - began)

    def _run(self, slots: Slots) -> None:
        """Set the value of each task.

        Raises:
            ServiceError: the engine or a reduction failed.

        """
        tasks = [slot.task for slot in slots]
        try:
            outputs = self._engine.run(tasks)
            check_outputs(tasks, outputs, self._engine.hidden_size)
            if self._inspect:
                self._inspect(tasks, outputs)
            for slot, output in zip(slots, outputs, strict=True):
                slot.value = slot.reduce(output) if slot.reduce else output
        except ServiceError:
            raise
        except MemoryError as error:
            raise EngineOutOfMemory("there is no memory left", retry_after_seconds=1) from error
        except BaseException as error:  # any error has to reach the callers
            raise EngineFailed(f"the engine raised {type(error).__name__}") from error

    def _finished(
        self, batch: Batch, slots: Slots, seconds: float, error: ServiceError | None = None
    ) -> None:
        """Pass tasks to the event loop, in one call for all of them. Runs in a worker's thread."""
        dropped = sum(self.withdraw(batch.lane, slot.work) for slot in slots) if error else 0
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            loop = slots[0].work.future.get_loop()
            loop.call_soon_threadsafe(self._answer, batch, slots, seconds, error, dropped)

    def _answer(
        self, batch: Batch, slots: Slots, seconds: float, error: ServiceError | None, dropped: int
    ) -> None:
        """Answer the work whose last task is computed, or fail all work of the tasks."""
        lane = batch.lane.name
        if error:
            _log.error("a batch of the %s lane failed", lane, exc_info=error)
            for slot in slots:
                slot.work.fail(error)
            self._observer.batch_failed(lane)
            for _ in range(dropped):
                self._observer.dropped(lane)
            return
        for slot in slots:
            work = slot.work
            slot.queue_seconds = batch.began - work.queued_at
            slot.inference_seconds = seconds
            work.left -= 1
            if not work.left and not work.future.done():
                work.future.set_result(None)
        self._observer.batch_finished(lane, [slot.task for slot in slots], seconds)


def _halves(slots: Slots, error: ServiceError, runs: int) -> list[Slots]:
    """Return the halves in which failed tasks are run again, last one first; or nothing.

    A batch that runs out of memory is halved once, and tasks of one call fail together. `runs` is
    the number of runs of the batch and its parts.
    """
    first, middle = slots[0].work, len(slots) // 2
    again = isinstance(error, EngineOutOfMemory) and runs == 1
    if isinstance(error, EngineFailed) and runs < MOST_RUNS:
        again = again or any(slot.work is not first for slot in slots)
    return [slots[middle:], slots[:middle]] if again and middle else []
