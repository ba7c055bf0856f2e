"""Scheduler of an engine: admission, queues, batches, results, deadlines and cancellation.

Each lane has a bounded queue. A batch starts as soon as a worker is idle and a task waits, so an
idle engine computes a single text at once, and batches form only from texts that wait. A worker
takes its next batch itself: an engine never waits for the event loop. If an engine allows spare
calls, a short text whose turn it is runs beside long batches instead of after them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from service.engines.contract import Engine, MapsTask, Task, TextTask
from service.errors import (
    DeadlinePassed,
    EngineFailed,
    EngineTimeout,
    EngineUnavailable,
    ServiceError,
)
from service.scheduler.call import ANYBODY, NOTHING, Call, Demand, PendingWork
from service.scheduler.lanes import LANE_SHARES, TOO_LATE, BatchLimits, Lane, LaneName, Observer
from service.scheduler.outputs import Inspect, Slots, compute
from service.scheduler.queue import Reduce, Slot, Value, Work
from service.system.resources import lower_priority

CLOSE_SECONDS = 5.0
"""Maximum seconds for which `Scheduler.close` waits for running batches."""
SHORT_TOKENS, LONG_TOKENS = 64, 128
"""Maximum tokens of a short batch, and minimum tokens of the batches beside which it may run."""
SWEEP_SECONDS = 0.01
"""Minimum seconds between two searches for work whose time is over."""

_log = logging.getLogger("headscope")
_queue_seconds, _served, _tokens = map(attrgetter, ("queue_seconds", "served", "tokens"))


@dataclass(eq=False, slots=True)
class Batch:
    """Tasks that a worker computes together."""

    lane: Lane
    slots: Slots
    spare: bool
    """Whether a worker for short batches computes it, beside long ones."""
    tokens: int
    began: float
    """`time.monotonic()` when the tasks left the queue."""


class Scheduler:
    """Lanes of an engine, and a worker thread for each concurrent call that the engine allows.

    Requests are admitted and answered on the event loop. The lock guards the lanes, the numbers of
    idle workers and the running batches. It is held only while tasks are queued or taken, not while
    they are computed.
    """

    def __init__(
        self,
        engine: Engine,
        limits: BatchLimits,
        observer: Observer,
        inspect: Inspect | None = None,
    ) -> None:
        """Initialise without a thread; `inspect` gets batches before their reduction."""
        self.engine = engine
        self.lanes = {name: Lane(name, limits, engine, observer) for name in LANE_SHARES}
        encode, attention = self.lanes.values()
        encode.other, attention.other = attention, encode
        self.last_success = -math.inf
        """`time.monotonic()` of the last batch, or part of one, that was computed."""
        self.failed_in_a_row = 0
        """Number of failed batches, or parts, since the last computed one."""
        self._limits = limits
        self._late = f"a batch takes more than {limits.batch_seconds:g} s"
        self._observer = observer
        self._inspect = inspect
        self._lock = threading.Lock()
        self._idle = {False: engine.concurrency, True: engine.spare_calls}
        """Numbers of idle workers for any batch, and for short batches only."""
        self._threads: list[threading.Thread] = []
        self._begun: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        """Batches of idle workers; None ends a worker."""
        self._running: set[Batch] = set()
        self._virtual_time = 0.0
        """`served` of the lane last computed, at which an empty lane restarts without credit."""
        self._crash = ""
        """Name of the exception that ended a batch unexpectedly."""
        self._closed = ""
        """Reason why all requests are refused; empty while the scheduler is open."""
        self._open: dict[Work[object], Lane] = {}
        """Work that is not answered."""
        self._sweep_at = math.inf
        """`time.monotonic()` of the next search for work whose time is over."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def failure(self) -> str:
        """Reason why the engine computes nothing any more; empty while it works."""
        name = self.engine.name
        if self._crash:
            return f"the scheduler of the {name} engine failed: {self._crash}"
        if not self.engine.alive:
            return f"the {name} engine is down"
        if self._overdue():
            return f"the {name} engine hangs: {self._late}"
        return ""

    def admit(self, name: LaneName, call: Call, demand: Demand) -> Call:
        """Admit a request by an estimate, before it is tokenised.

        Return the call with its tokens held in the queue. A demand of nothing stands for a text
        that is tokenised at once, which `submit` admits.

        Raises:
            Overloaded: the queue has no room, or the deadline cannot be met.

        """
        lane = self.lanes[name]
        in_time = call.finish_by > time.monotonic()
        if demand is NOTHING and in_time and not lane.congestion.standing:
            return call
        with self._lock:
            lane.admit(call, demand, idle=self._idle[False] > 0)
        if demand.tokens and call.reservation:
            estimate = PendingWork(demand.tokens)
            lane.estimates.add(call, estimate)
            call.reservation.on_release(estimate.end)
            return replace(call, estimate=estimate)
        return call

    async def submit(
        self,
        name: LaneName,
        tasks: Sequence[Task],
        call: Call = ANYBODY,
        reduce: Sequence[Reduce[Value]] = (),
        *,
        resumed: bool = False,
    ) -> list[Slot[Value]]:
        """Admit and compute the first tasks of a request, at least one, all or none.

        Further tasks, of one kind, of an admitted request are `resumed`: they are always queued,
        and maps go before all texts. Each reduction of an output is called in the worker's thread;
        without reductions, the outputs are kept. Cancelling the call drops the tasks that wait.

        Raises:
            Unprocessable: the request alone exceeds the queue.
            Overloaded: the queue has no room, or the predicted or actual wait is too long.
            EngineTimeout: the deadline passed after some of the request's tasks had begun.
            ServiceError: the engine failed.

        """
        lane, maps = self.lanes[name], resumed and isinstance(tasks[0], MapsTask)
        work = Work(tasks, call, reduce, None if resumed else self._limits.queue_seconds)
        if not resumed:
            if not self.engine.alive:
                why = f"the {self.engine.name} engine is down"
                raise EngineUnavailable(why, retry_after_seconds=5)
            if call.submitted_to:
                call.submitted_to(self.engine.name)
        elif call.estimate and not maps:
            call.estimate.keep(work.tokens)
        with self._lock:
            if not resumed:
                admitted = bool(call.estimate or call.pending) and call.kept(work.tokens)
                demand = Demand(len(tasks), work.tokens, admitted=admitted)
                idle = self._idle[False] > 0
                work.predicted_seconds = lane.admit(call, demand, idle=idle)
            self._push(lane, work, maps=maps)
        self._open[work] = lane
        if work.due < self._sweep_at:
            self._sweep_later(work.due)
        if call.pending and not resumed:
            lane.pending.add(call, call.pending)
        try:
            await work.future
        finally:
            slots = self._ended(lane, work)
        if not resumed:
            self._observer.waited(name, min(map(_queue_seconds, slots)))
        elif call.pending:
            call.pending.keep(work.tokens)
        return slots

    def _ended(self, lane: Lane, work: Work[Value]) -> list[Slot[Value]]:
        """Forget work that was computed, failed or cancelled, and return its tasks."""
        del self._open[work]
        if work.waiting:
            self._withdraw(lane, work)
        if work.begun and not work.future.cancelled():  # a deadline's seconds count, though too few
            lane.margin.account(work.predicted_seconds, time.monotonic() - work.queued_at)
        slots, work.slots = work.slots, []  # a cycle of references
        return slots

    def seconds_alone(self, tokens: int, map_tokens: int = 0) -> float:
        """Return the predicted seconds of a request of the lane `attention` on an idle engine.

        `map_tokens` are the tokens of all layers whose maps it requests.
        """
        lane = self.lanes["attention"]
        with self._lock:
            seconds = lane.text_pace.predict(tokens) + lane.map_pace.predict(map_tokens)
        return seconds / self.engine.concurrency

    def close(self, why: str = "the service is stopping") -> bool:
        """Fail waiting and later requests with `why`, and release the engine after its batches.

        Return whether all batches have finished. A hanging call keeps its engine and its thread:
        wait at most `CLOSE_SECONDS` for running batches. If one is overdue, do not wait, but fail
        its requests.
        """
        with self._lock:
            self._closed = why
            waiting = [work for lane in self.lanes.values() for work in lane.clear()]
        overdue = {slot.work for batch in self._overdue() for slot in batch.slots}
        stopped = EngineUnavailable(why, retry_after_seconds=5)
        for work in overdue.union(waiting):
            error = EngineTimeout(self._late) if work in overdue else stopped
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
                work.future.get_loop().call_soon_threadsafe(work.fail, error)
        ends = time.monotonic() + (0 if overdue else CLOSE_SECONDS)
        for _ in self._threads:
            self._begun.put(None)
        for thread in self._threads:
            thread.join(max(0, ends - time.monotonic()))
        finished = not any(thread.is_alive() for thread in self._threads)
        if finished:
            self.engine.close()
        return finished

    def _sweep_later(self, due: float) -> None:
        """Search for work whose time is over at `time.monotonic()` of `due`, or soon after."""
        if self._timer:
            self._timer.cancel()
        self._sweep_at = due
        seconds = max(SWEEP_SECONDS, due - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(seconds, self._sweep)

    def _sweep(self) -> None:
        """Fail all work whose time is over."""
        self._sweep_at, now = math.inf, time.monotonic()
        with self._lock:  # none of it begins meanwhile
            late = [work for work in self._open if work.due <= now and not work.future.done()]
            for work in late:
                if work.begun:
                    work.fail(EngineTimeout("the deadline came before all of it was computed"))
                    continue
                lane = self._open[work]
                self._observer.waited(lane.name, now - work.queued_at)
                wait = lane.wait(lane.tokens_before(work.call.client), idle=False)
                work.fail(lane.refused("deadline", TOO_LATE, wait, DeadlinePassed))
        due = min([work.due for work in self._open if work.due > now], default=math.inf)
        if due < math.inf:
            self._sweep_later(due)

    def _overdue(self) -> list[Batch]:
        """Return the running batches that take longer than `batch_seconds`."""
        latest = time.monotonic() - self._limits.batch_seconds
        with self._lock:
            return [batch for batch in self._running if batch.began < latest]

    def _withdraw(self, lane: Lane, work: Work[object]) -> None:
        """Remove the waiting tasks of some work from the queue, and count its texts as dropped."""
        with self._lock:
            waiting = [slot for slot in work.slots if slot.waiting]
            for slot in waiting:
                lane.remove(slot)
        for slot in waiting:
            if isinstance(slot.task, TextTask):
                self._observer.count("dropped_texts", lane.name)

    def _push(self, lane: Lane, work: Work[object], *, maps: bool) -> None:
        """Queue tasks, and start idle workers. The caller holds the lock."""
        if self._closed:
            raise EngineUnavailable(self._closed, retry_after_seconds=5)
        if not lane.queued_texts:
            lane.served = max(lane.served, self._virtual_time)
        lane.push(work, maps=maps)
        for spare in self._idle:
            while self._idle[spare] and (batch := self._take(spare=spare)):
                self._idle[spare] -= 1
                self._begun.put(batch)
                if len(self._threads) < len(self._running):
                    name = f"{self.engine.name}-engine_{len(self._threads)}"
                    thread = threading.Thread(target=self._serve, name=name, daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _take(self, *, spare: bool) -> Batch | None:
        """Take a batch from the lane furthest below its share. The caller holds the lock.

        A `spare` call takes a short batch, if all running ones are long.
        """
        if spare:
            tokens = [*map(_tokens, self._running)]
            if len(tokens) < self.engine.concurrency or min(tokens) < LONG_TOKENS:
                return None
        most = SHORT_TOKENS if spare else self._limits.max_batch_tokens
        for lane in sorted(self.lanes.values(), key=_served):
            if not lane.queued_texts:
                continue
            if spare and (lane.maps.order or lane.window(1)[0].tokens > SHORT_TOKENS):
                continue
            if slots := lane.next_batch(most, beside=spare):
                self._virtual_time = max(self._virtual_time, lane.served)
                batch = Batch(lane, slots, spare, sum(map(_tokens, slots)), time.monotonic())
                self._running.add(batch)
                return batch
        return None

    def _serve(self) -> None:
        """Compute batches until the scheduler is closed. Runs in a worker's thread."""
        lower_priority()
        while batch := self._begun.get():
            while batch:
                batch = self._work(batch)

    def _work(self, batch: Batch) -> Batch | None:
        """Compute a batch, and return the next one if tasks wait."""
        try:
            for slots, seconds, error in compute(self.engine, batch.slots, self._inspect):
                with self._lock:
                    if error:
                        self.failed_in_a_row += 1
                    else:
                        self.failed_in_a_row, self.last_success = 0, time.monotonic()
                        batch.lane.account(slots, seconds)
                self._finished(batch, slots, seconds, error)
            with self._lock:
                self._running.remove(batch)
                batch.lane.served += (time.monotonic() - batch.began) / batch.lane.share
                following = self._take(spare=batch.spare)
                self._idle[batch.spare] += not following
                return following
        except BaseException as error:
            with self._lock:
                self._running.discard(batch)
                self._crash = type(error).__name__
            _log.critical("a worker of the %s engine ended", self.engine.name, exc_info=error)
            failed = EngineFailed(f"the scheduler failed: {self._crash}")
            self._finished(batch, batch.slots, 0.0, failed)
            return None

    def _finished(
        self, batch: Batch, slots: Slots, seconds: float, error: ServiceError | None = None
    ) -> None:
        """Pass tasks to the event loop, in one call for all of them. Runs in a worker's thread."""
        for slot in slots if error else ():
            self._withdraw(batch.lane, slot.work)
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            loop = slots[0].work.future.get_loop()
            loop.call_soon_threadsafe(self._answer, batch, slots, seconds, error)

    def _answer(
        self, batch: Batch, slots: Slots, seconds: float, error: ServiceError | None
    ) -> None:
        """Answer the work whose last task is computed, or fail all work of the tasks."""
        lane = batch.lane.name
        if error:
            _log.error("a batch of the %s lane failed", lane, exc_info=error)
            for slot in slots:
                slot.work.fail(error)
            self._observer.count("failed_batches", lane)
            return
        for slot in slots:
            work = slot.work
            slot.queue_seconds = batch.began - work.queued_at
            slot.inference_seconds = seconds
            work.left -= 1
            if not work.left and not work.future.done():
                work.future.set_result(None)
        self._observer.batch_finished(lane, [slot.task for slot in slots], seconds)
