"""The lanes, and the threads that compute what waits in them.

A batch starts the moment a worker is idle and something waits. A worker that finishes takes its
next batch itself, so an engine never waits for the event loop. Where an engine takes spare calls, a
short text whose turn it is goes beside long batches instead of behind them.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from service.engines.contract import Engine, Output, Task
from service.errors import EngineFailed, EngineOutOfMemory, ServiceError
from service.scheduler.admission import BatchLimits, Workers
from service.scheduler.congestion import Congestion
from service.scheduler.isolation import isolate
from service.scheduler.lanes import LANE_SHARES, Lane
from service.scheduler.outputs import check_outputs
from service.scheduler.submission import Entry, Submission
from service.system.resources import lower_priority

_log = logging.getLogger("headscope")

CLOSE_SECONDS = 5.0
SHORT_TOKENS, LONG_TOKENS = 64, 128
"""A batch of so few tokens may go beside others that all have at least so many."""
Inspect = Callable[[Sequence[Task], Sequence[Output]], None]
"""A function of a batch and its outputs, called in the worker's thread."""


class Part(NamedTuple):
    """A batch, or as much of it as was computed at once, and how that went."""

    lane: Lane
    entries: Sequence[Entry]
    found: list[Any] | ServiceError
    """What is left of each output, or why there is none."""
    began: float
    """`time.monotonic()` when its batch left the queue."""
    seconds: float


class Running(NamedTuple):
    """A batch that is being computed."""

    began: float
    entries: Sequence[Entry]

    @property
    def tokens(self) -> int:
        """Of all its entries."""
        return sum(entry.task.tokens for entry in self.entries)


class Dispatcher:
    """Computes batches in as many threads as the engine takes calls at once.

    The lanes belong to `lock`, which nobody holds for longer than it takes to move the texts of a
    batch.
    """

    def __init__(
        self,
        engine: Engine,
        limits: BatchLimits,
        finished: Callable[[Part], None],
        inspect: Inspect | None,
    ) -> None:
        """Start nothing yet.

        Args:
            engine: computes.
            limits: of batches.
            finished: is told of each part, in the worker's thread.
            inspect: is shown each batch that was computed, before it is reduced.

        """
        self.lanes = {
            name: Lane(name, share, congestion=Congestion(limits.queue_target_seconds))
            for name, share in LANE_SHARES.items()
        }
        self.lock = threading.Lock()
        self._rests = threading.Condition(self.lock)
        """Notified when a worker becomes idle."""
        self.last_success: float = -math.inf
        """`time.monotonic()` of the last batch that was computed."""
        self.failed_in_a_row = 0
        """Parts, since something was computed."""
        self.crash = ""
        """Name of the exception that ended a worker thread."""
        self._engine = engine
        self._limits = limits
        self._finished = finished
        self._inspect = inspect
        self._threads = ThreadPoolExecutor(
            engine.concurrency + engine.spare_calls, f"{engine.name}-engine", lower_priority
        )
        self._idle = engine.concurrency
        self._spare = engine.spare_calls
        """Idle workers that take short batches alone."""
        self._running: dict[int, Running] = {}
        """Running batches by thread."""
        self._virtual_time = 0.0
        """`served` of the lane that went last: where one that was empty starts, without credit."""

    @property
    def workers(self) -> Workers:
        """The threads that compute."""
        return Workers(self._engine.concurrency, self._idle)

    def push(self, lane: Lane, submission: Submission) -> None:
        """Queue tasks, and start who is idle. Under the lock."""
        if not lane.queued_tokens:
            lane.served = max(lane.served, self._virtual_time)
        lane.push(submission)
        while self._idle and (taken := self._take()):
            self._idle -= 1
            self._threads.submit(self._work, *taken)
        while self._spare and (taken := self._take_short()):
            self._spare -= 1
            self._threads.submit(self._work, *taken, spare=True)

    def overdue(self) -> list[Running]:
        """The batches that take longer than any may."""
        latest = time.monotonic() - self._limits.batch_seconds
        return [running for running in list(self._running.values()) if running.began < latest]

    def close(self) -> bool:
        """Let running batches finish, but not for long: nobody waits for them any more.

        Returns:
            Whether they have.

        """
        self._threads.shutdown(wait=False)
        seconds = 0 if self.overdue() else CLOSE_SECONDS
        with self._rests:
            return self._rests.wait_for(self._at_rest, seconds)

    def _at_rest(self) -> bool:
        workers = self._engine.concurrency, self._engine.spare_calls
        return (self._idle, self._spare) == workers

    def _take(self) -> tuple[Lane, list[Entry]] | None:
        """The next batch, from the lane that is furthest below its share. Under the lock."""
        while waiting := [lane for lane in self.lanes.values() if lane.queued_tokens]:
            lane = min(waiting, key=lambda lane: lane.served)
            self._virtual_time = max(self._virtual_time, lane.served)
            if batch := lane.take(self._limits.max_batch_tokens):
                return lane, batch
        return None

    def _take_short(self) -> tuple[Lane, list[Entry]] | None:
        """A short batch whose turn it is, while all that run are long. Under the lock."""
        running = [each.tokens for each in list(self._running.values())]
        if len(running) < self._engine.concurrency or min(running) < LONG_TOKENS:
            return None
        for lane in self.lanes.values():
            if 0 < lane.first_tokens <= SHORT_TOKENS and (
                batch := lane.take(SHORT_TOKENS, beside=True)
            ):
                return lane, batch
        return None

    def _work(self, lane: Lane, batch: list[Entry], *, spare: bool = False) -> None:
        """Compute a batch, and others for as long as something waits. In a worker's thread."""
        taken: tuple[Lane, list[Entry]] | None = (lane, batch)
        try:
            while taken:
                lane, batch = taken
                seconds = self._compute(lane, batch)
                with self.lock:
                    lane.served += seconds / lane.share
                    taken = self._take_short() if spare else self._take()
                    if not taken:
                        self._spare += spare
                        self._idle += not spare
                        self._rests.notify_all()
        except BaseException as error:
            self.crash = type(error).__name__
            _log.critical("a worker of the %s engine ended", self._engine.name, exc_info=error)
            failed = EngineFailed(f"the scheduler failed: {self.crash}")
            self._finished(Part(lane, batch, failed, time.monotonic(), 0.0))

    def _compute(self, lane: Lane, batch: list[Entry]) -> float:
        """One batch, in parts where it fails; returns the seconds that it took."""
        began = started = time.monotonic()
        thread = threading.get_ident()
        self._running[thread] = Running(began, batch)
        try:
            for entries, found in isolate(batch, self._run, _wanted, _shared):
                now = time.monotonic()
                self._account(lane, entries, found, now - started)
                self._finished(Part(lane, entries, found, began, now - started))
                started = now
        finally:
            del self._running[thread]
        return time.monotonic() - began

    def _run(self, batch: Sequence[Entry]) -> list[Any]:
        tasks = [entry.task for entry in batch]
        try:
            outputs = self._engine.run(tasks)
            check_outputs(tasks, outputs, self._engine.hidden_size)
            if self._inspect:
                self._inspect(tasks, outputs)
            return [entry.reduced(output) for entry, output in zip(batch, outputs, strict=True)]
        except ServiceError:
            raise
        except MemoryError as error:
            raise EngineOutOfMemory("there is no memory left", retry_after_seconds=1) from error
        except BaseException as error:  # whatever it is, its callers must hear of it
            raise EngineFailed(f"the engine raised {type(error).__name__}") from error

    def _account(self, lane: Lane, entries: Sequence[Entry], found: object, seconds: float) -> None:
        if isinstance(found, ServiceError):
            self.failed_in_a_row += 1
            return
        self.failed_in_a_row = 0
        with self.lock:
            self.last_success = time.monotonic()
            lane.account(entries, seconds)


def _wanted(entry: Entry) -> bool:
    return not entry.submission.future.done()


def _shared(entries: Sequence[Entry]) -> bool:
    return any(entry.submission is not entries[0].submission for entry in entries)
