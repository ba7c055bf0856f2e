"""Dispatch of batches from the lanes to worker threads.

A batch starts as soon as a worker is idle and a task waits. A worker takes its next batch itself,
so an engine never waits for the event loop. If an engine allows spare calls, a short text whose
turn it is runs beside long batches instead of after them.

A batch that fails is halved recursively. A text that an engine cannot compute therefore only delays
the other texts of its batch, and no text fails by an error that occurs once.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from service.engines.contract import Engine, Output, Task
from service.errors import EngineFailed, EngineOutOfMemory, ServiceError
from service.scheduler.admission import BatchLimits
from service.scheduler.lanes import LANE_SHARES, Congestion, Lane
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

_log = logging.getLogger("headscope")


@dataclass(eq=False, slots=True)
class Batch:
    """Tasks that a worker computes together; a part of them, if the whole has failed."""

    lane: Lane
    slots: Sequence[Slot[object]]
    began: float
    """`time.monotonic()` when the tasks left the queue."""
    spare: bool = False
    """Whether a worker for short batches computes it, beside long ones."""
    seconds: float = 0.0
    """Seconds that the computation took."""
    error: ServiceError | None = None
    """Error of all tasks; None if each has its value."""
    tokens: int = field(init=False)
    """Tokens of all tasks."""

    def __post_init__(self) -> None:
        """Sum the tokens, which are compared each time that a request is queued."""
        self.tokens = sum([slot.tokens for slot in self.slots])

    def halves(self, error: ServiceError, runs: int) -> list[Sequence[Slot[object]]]:
        """Return the halves in which failed tasks are run again, last one first; or nothing.

        A batch that runs out of memory is halved once, and tasks of one call fail together. `runs`
        is the number of runs of the batch and its parts.
        """
        first, middle = self.slots[0].work, len(self.slots) // 2
        again = isinstance(error, EngineOutOfMemory) and runs == 1
        if isinstance(error, EngineFailed) and runs < MOST_RUNS:
            again = again or any(slot.work is not first for slot in self.slots)
        return [self.slots[middle:], self.slots[:middle]] if again and middle else []


class Dispatcher:
    """Lanes of an engine, and a worker thread for each concurrent call that the engine allows.

    `lock` guards the lanes, the numbers of idle workers and the running batches. It is held only
    while tasks are queued or taken, not while they are computed.
    """

    def __init__(
        self,
        engine: Engine,
        limits: BatchLimits,
        finished: Callable[[Batch], None],
        inspect: Inspect | None,
    ) -> None:
        """Initialise without starting a thread.

        `finished` is called with each batch, or part of a failed one, and `inspect` with each
        batch and its outputs before their reduction, both in the worker's thread.
        """
        self.lanes = {
            name: Lane(name, share, congestion=Congestion(limits.queue_target_seconds))
            for name, share in LANE_SHARES.items()
        }
        self.lock = threading.Lock()
        self._worker_idle = threading.Condition(self.lock)
        """Condition that is notified when a worker becomes idle."""
        self.last_success: float = -math.inf
        """`time.monotonic()` of the last batch, or part of one, that was computed."""
        self.failed_in_a_row = 0
        """Number of failed batches, or parts, since the last computed one."""
        self.crash = ""
        """Name of the exception that ended a batch unexpectedly."""
        self.idle = engine.concurrency
        """Number of idle workers for any batch."""
        self._spare = engine.spare_calls
        """Number of idle workers for short batches only."""
        self._engine = engine
        self._limits = limits
        self._finished = finished
        self._inspect = inspect
        self._threads: list[threading.Thread] = []
        self._begun: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        """Batches of idle workers; None ends a worker."""
        self._running: set[Batch] = set()
        self._virtual_time = 0.0
        """`served` of the lane last computed, at which an empty lane restarts without credit."""

    def push(self, lane: Lane, work: Work[object], *, maps: bool = False) -> None:
        """Queue tasks, and start idle workers. The caller holds the lock."""
        if not lane.texts.texts and not lane.maps:
            lane.served = max(lane.served, self._virtual_time)
        lane.push(work, maps=maps)
        while self.idle and (batch := self._take()):
            self.idle -= 1
            self._start(batch)
        while self._spare and (batch := self._take_short()):
            self._spare -= 1
            self._start(batch)

    def overdue(self) -> list[Batch]:
        """Return the running batches that take longer than `batch_seconds`."""
        latest = time.monotonic() - self._limits.batch_seconds
        with self.lock:
            return [batch for batch in self._running if batch.began < latest]

    def close(self) -> bool:
        """Wait at most `CLOSE_SECONDS` for running batches; not at all if one is overdue.

        Returns:
            Whether all have finished.

        """
        for _ in self._threads:
            self._begun.put(None)
        seconds = 0 if self.overdue() else CLOSE_SECONDS
        workers = self._engine.concurrency, self._engine.spare_calls
        with self._worker_idle:
            return self._worker_idle.wait_for(lambda: (self.idle, self._spare) == workers, seconds)

    def _start(self, batch: Batch) -> None:
        """Pass a batch to an idle worker. The caller holds the lock."""
        self._begun.put(batch)
        if len(self._threads) < len(self._running):
            name = f"{self._engine.name}-engine_{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        """Compute batches until the dispatcher is closed. Runs in a worker's thread."""
        lower_priority()
        while batch := self._begun.get():
            self._work(batch)
            del batch  # free its results while the worker is idle

    def _take(self) -> Batch | None:
        """Take a batch from the lane furthest below its share. The caller holds the lock."""
        while waiting := [lane for lane in self.lanes.values() if lane.queued_tokens]:
            lane = min(waiting, key=lambda lane: lane.served)
            self._virtual_time = max(self._virtual_time, lane.served)
            if slots := lane.take(self._limits.max_batch_tokens):
                return self._begin(lane, slots)
        return None

    def _take_short(self) -> Batch | None:
        """Take a short batch if all running ones are long. The caller holds the lock."""
        tokens = [batch.tokens for batch in self._running]
        if len(tokens) < self._engine.concurrency or min(tokens) < LONG_TOKENS:
            return None
        for lane in self.lanes.values():
            if 0 < lane.first_tokens <= SHORT_TOKENS and (
                slots := lane.take(SHORT_TOKENS, beside=True)
            ):
                return self._begin(lane, slots, spare=True)
        return None

    def _begin(self, lane: Lane, slots: Sequence[Slot[object]], *, spare: bool = False) -> Batch:
        """Return taken tasks as a running batch. The caller holds the lock."""
        batch = Batch(lane, slots, time.monotonic(), spare)
        self._running.add(batch)
        return batch

    def _work(self, batch: Batch) -> None:
        """Compute a batch, and further ones while tasks wait. Runs in a worker's thread."""
        following: Batch | None = batch
        try:
            while following:
                batch, began = following, time.monotonic()
                self._compute(batch, began)
                with self.lock:
                    self._running.remove(batch)
                    batch.lane.served += (time.monotonic() - began) / batch.lane.share
                    following = self._take_short() if batch.spare else self._take()
                    if not following:
                        self._spare += batch.spare
                        self.idle += not batch.spare
                        self._worker_idle.notify_all()
        except BaseException as error:
            with self.lock:
                self._running.discard(batch)
                self.crash = type(error).__name__
            _log.critical("a worker of the %s engine ended", self._engine.name, exc_info=error)
            failed = EngineFailed(f"the scheduler failed: {self.crash}")
            self._finished(Batch(batch.lane, batch.slots, time.monotonic(), error=failed))

    def _compute(self, batch: Batch, began: float) -> None:
        """Compute a batch, in parts if it fails; `began` is its start by `time.monotonic()`."""
        lane, part_began, runs = batch.lane, began, 0
        pending = [batch.slots]
        while pending:
            part = Batch(lane, pending.pop(), began)
            if runs:
                part.slots = [slot for slot in part.slots if not slot.work.future.done()]
            if not part.slots:
                continue
            runs += 1
            try:
                self._run(part.slots)
            except ServiceError as error:
                if halves := part.halves(error, runs):
                    pending += halves
                    continue
                part.error = error
            now = time.monotonic()
            part.seconds, part_began = now - part_began, now
            with self.lock:
                if part.error:
                    self.failed_in_a_row += 1
                else:
                    self.failed_in_a_row, self.last_success = 0, now
                    lane.account(part.slots, part.seconds)
            self._finished(part)

    def _run(self, slots: Sequence[Slot[object]]) -> None:
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
