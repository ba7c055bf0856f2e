"""Scheduler of an engine: admission, queues, results, deadlines and cancellation.

Each lane has a bounded queue. An idle engine computes a single text at once, and batches form only
from texts that wait: see `dispatch`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, overload

from service.engines.contract import Engine, MapsTask, Output, Task, TextTask
from service.errors import EngineTimeout, EngineUnavailable
from service.scheduler.admission import (
    NOTHING,
    Admission,
    BatchLimits,
    Demand,
    Forecast,
    RefusalReason,
    deadline_passed,
    reason_of,
)
from service.scheduler.call import ANYBODY, Call, PendingWork
from service.scheduler.dispatch import Batch, Dispatcher, Inspect
from service.scheduler.lanes import Lane, LaneName
from service.scheduler.queue import Reduce, Slot, Value, Work

Tasks = Sequence[Task]
Reductions = Sequence[Reduce[Value]]
Results = list[Slot[Value]]


class Observer(Protocol):
    """Receiver of a scheduler's events, for metrics."""

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


_log = logging.getLogger("headscope")

SWEEP_SECONDS = 0.01
"""Minimum seconds between two searches for work whose time is over."""


class Scheduler:
    """Lanes and dispatcher of one engine.

    Requests are answered, and the observer is called, on the event loop.
    """

    def __init__(
        self,
        engine: Engine,
        limits: BatchLimits,
        observer: Observer,
        inspect: Inspect | None = None,
    ) -> None:
        self.engine = engine
        self._dispatcher = Dispatcher(engine, limits, self._finished, inspect)
        self.lanes = self._dispatcher.lanes
        for lane in self.lanes.values():
            lane.cost = engine.cost
            lane.expect(engine.measured, engine.measured_maps or engine.measured)
        self._limits = limits
        self._admission = Admission(self.lanes.values(), limits, engine.concurrency)
        self._observer = observer
        self._closed = ""
        """Reason why all requests are refused; empty while the scheduler is open."""
        self._open: dict[Work[object], Lane] = {}
        """Work that is not answered."""
        self._sweep_at = math.inf
        """`time.monotonic()` of the next search for work whose time is over."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def last_success(self) -> float:
        """`time.monotonic()` of the last computed batch."""
        return self._dispatcher.last_success

    @property
    def failed_in_a_row(self) -> int:
        """Number of failed batches, or parts of batches, since the last computed one."""
        return self._dispatcher.failed_in_a_row

    @property
    def failure(self) -> str:
        """Reason why the engine computes nothing any more; empty while it works."""
        name = self.engine.name
        if self._dispatcher.crash:
            return f"the scheduler of the {name} engine failed: {self._dispatcher.crash}"
        if not self.engine.alive:
            return f"the {name} engine is down"
        if self._dispatcher.overdue():
            return f"the {name} engine hangs: {self._late()}"
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
        with self._dispatcher.lock:
            self._admit(lane, call, demand)
        if demand.tokens and call.reservation:
            estimate = PendingWork(demand.tokens)
            lane.estimates.add(call, estimate)
            call.reservation.on_release(estimate.end)
            return replace(call, estimate=estimate)
        return call

    @overload
    async def submit(self, name: LaneName, tasks: Tasks, call: Call = ...) -> Results[Output]: ...
    @overload
    async def submit(
        self, name: LaneName, tasks: Tasks, call: Call, reduce: Reductions[Value]
    ) -> Results[Value]: ...
    async def submit(
        self,
        name: LaneName,
        tasks: Tasks,
        call: Call = ANYBODY,
        reduce: Reductions[Value] | None = None,
    ) -> Results[Value]:
        """Admit and compute the first tasks of a request, at least one, all or none.

        Cancelling it drops the tasks that still wait. The remaining pending work of the call is
        submitted by `resume`.

        Raises:
            Unprocessable: the request alone exceeds the queue.
            Overloaded: the queue has no room, or the predicted or actual wait is too long.
            EngineTimeout: the deadline passed after some of the tasks had begun.
            ServiceError: the engine failed.

        """
        if not self.engine.alive:
            raise EngineUnavailable(f"the {self.engine.name} engine is down", retry_after_seconds=5)
        lane = self.lanes[name]
        work = Work(tasks, call, reduce, wait_seconds=self._limits.queue_seconds)
        demand = Demand(len(tasks), work.tokens, admitted=call.kept(work.tokens))
        call.submitted_to(self.engine.name)
        with self._dispatcher.lock:
            work.predicted_seconds = self._admit(lane, call, demand).total
            self._dispatcher.push(lane, work)
        if call.pending:
            lane.pending.add(call, call.pending)
        try:
            slots = await self._computed(lane, work)
        except EngineTimeout:  # account for the seconds so far, though it needed more
            lane.margin.account(work.predicted_seconds, time.monotonic() - work.queued_at)
            raise
        self._observer.waited(name, min([slot.queue_seconds for slot in slots]))
        lane.margin.account(work.predicted_seconds, time.monotonic() - work.queued_at)
        return slots

    @overload
    async def resume(
        self, name: LaneName, tasks: Tasks, *, call: Call = ...
    ) -> Results[Output]: ...
    @overload
    async def resume(
        self, name: LaneName, tasks: Tasks, reduce: Reductions[Value], call: Call = ...
    ) -> Results[Value]: ...
    async def resume(
        self,
        name: LaneName,
        tasks: Tasks,
        reduce: Reductions[Value] | None = None,
        call: Call = ANYBODY,
    ) -> Results[Value]:
        """Compute further tasks of one kind of an admitted request; maps go before all texts.

        Each reduction of an output is called in the worker's thread; without reductions, the
        outputs are kept.

        Raises:
            EngineTimeout: the deadline passed.
            ServiceError: the engine failed.

        """
        lane, maps = self.lanes[name], isinstance(tasks[0], MapsTask)
        work = Work(tasks, call, reduce)
        work.begin()
        if call.estimate and not maps:
            call.estimate.keep(work.tokens)
        with self._dispatcher.lock:
            if self._closed:
                raise self._stopped()
            self._dispatcher.push(lane, work, maps=maps)
        slots = await self._computed(lane, work)
        if call.pending:
            call.pending.keep(work.tokens)
        return slots

    def seconds_alone(self, lane_name: LaneName, tokens: int, map_tokens: int = 0) -> float:
        """Return the predicted seconds of a request on an idle engine.

        `map_tokens` are the tokens of all layers whose maps it requests.
        """
        lane, most = self.lanes[lane_name], self._limits.max_batch_tokens
        with self._dispatcher.lock:
            seconds = lane.text_pace.predict(tokens, most)
            seconds += lane.map_pace.predict(map_tokens, most)
        return seconds / self.engine.concurrency

    def fail_overdue(self) -> None:
        """Fail the requests whose batch takes longer than `batch_seconds`."""
        for batch in self._dispatcher.overdue():
            for slot in batch.slots:
                slot.work.fail(EngineTimeout(self._late()))

    def close(self, why: str = "the service is stopping") -> bool:
        """Fail waiting and later requests with `why`, and release the engine after its batches.

        Return whether all batches have finished. A hanging call keeps its engine and its thread.
        """
        with self._dispatcher.lock:
            self._closed = why
            waiting = [work for lane in self.lanes.values() for work in lane.clear()]
        for work in waiting:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
                work.future.get_loop().call_soon_threadsafe(work.fail, self._stopped())
        finished = self._dispatcher.close()
        if finished:
            self.engine.close()
        return finished

    async def _computed(self, lane: Lane, work: Work[Value]) -> Results[Value]:
        """Return the computed tasks of queued work."""
        self._open[work] = lane
        if work.due < self._sweep_at:
            self._sweep_later(work.due)
        try:
            await work.future
        finally:
            del self._open[work]
            if work.waiting:
                self._dropped(lane, self._withdraw(lane, work))
            slots, work.slots = work.slots, []  # a cycle of references
        return slots

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
        with self._dispatcher.lock:  # none of it begins meanwhile
            late = [(work, work.begun) for work in self._open if work.due <= now]
        for work, begun in late:
            if work.future.done():
                continue
            if begun:
                work.fail(EngineTimeout("the deadline came before all of it was computed"))
                continue
            lane = self._open[work]
            self._observer.refused(lane.name, "deadline")
            self._observer.waited(lane.name, now - work.queued_at)
            with self._dispatcher.lock:
                expected = self._admission.forecast(lane, work.call, NOTHING, idle=False)
            work.fail(deadline_passed(expected.wait))
        due = min([work.due for work in self._open if work.due > now], default=math.inf)
        if due < math.inf:
            self._sweep_later(due)

    def _admit(self, lane: Lane, call: Call, demand: Demand) -> Forecast:
        """Return the predicted times of a request that is admitted. The caller holds the lock.

        Raises:
            EngineUnavailable: the scheduler is closed.
            Unprocessable, Overloaded: the request is refused.

        """
        if self._closed:
            raise self._stopped()
        idle = self._dispatcher.idle > 0
        expected = self._admission.forecast(lane, call, demand, idle=idle)
        if refusal := self._admission.refusal(lane, call, demand, expected):
            self._observer.refused(lane.name, reason_of(refusal))
            raise refusal
        return expected

    def _stopped(self) -> EngineUnavailable:
        return EngineUnavailable(self._closed, retry_after_seconds=5)

    def _late(self) -> str:
        return f"a batch takes more than {self._limits.batch_seconds:g} s"

    def _withdraw(self, lane: Lane, work: Work[object]) -> int:
        """Remove the waiting tasks of some work from the queue; return the number of texts."""
        with self._dispatcher.lock:
            waiting = [slot for slot in work.slots if slot.waiting]
            for slot in waiting:
                lane.remove(slot)
        return sum(isinstance(slot.task, TextTask) for slot in waiting)

    def _dropped(self, lane: Lane, texts: int) -> None:
        for _ in range(texts):
            self._observer.dropped(lane.name)

    def _finished(self, batch: Batch) -> None:
        """Pass a batch to the event loop, in one call for all of it. Runs in a worker's thread."""
        dropped = 0
        if batch.error:
            dropped = sum(self._withdraw(batch.lane, slot.work) for slot in batch.slots)
        loop = batch.slots[0].work.future.get_loop()
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            loop.call_soon_threadsafe(self._answer, batch, dropped)

    def _answer(self, batch: Batch, dropped: int) -> None:
        """Answer the work whose last task is computed."""
        lane, slots, began, seconds = batch.lane, batch.slots, batch.began, batch.seconds
        if batch.error:
            _log.error("a batch of the %s lane failed", lane.name, exc_info=batch.error)
            for slot in slots:
                slot.work.fail(batch.error)
            self._observer.batch_failed(lane.name)
            self._dropped(lane, dropped)
            return
        for slot in slots:
            work = slot.work
            slot.queue_seconds = began - work.queued_at
            slot.inference_seconds = seconds
            work.left -= 1
            if not work.left and not work.future.done():
                work.future.set_result(None)
        self._observer.batch_finished(lane.name, [slot.task for slot in slots], seconds)
