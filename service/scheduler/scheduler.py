"""Scheduler of an engine: admission, queues, results, deadlines and cancellation.

Each lane has a bounded queue. An idle engine computes a single text at once, and batches form only
from texts that wait: see `dispatch`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import overload

from service.engines.contract import Engine, MapsTask, Output, Task
from service.errors import EngineTimeout, EngineUnavailable, Overloaded
from service.scheduler.call import (
    ANYBODY,
    NOTHING,
    Call,
    Demand,
    PendingWork,
    deadline_passed,
    reason_of,
)
from service.scheduler.dispatch import Dispatcher, Inspect, Observer
from service.scheduler.lanes import BatchLimits, Lane, LaneName
from service.scheduler.queue import Reduce, Slot, Value, Work

SWEEP_SECONDS = 0.01
"""Minimum seconds between two searches for work whose time is over."""


class Scheduler:
    """Admission and deadlines of one engine's requests, on the event loop."""

    def __init__(
        self,
        engine: Engine,
        limits: BatchLimits,
        observer: Observer,
        inspect: Inspect | None = None,
    ) -> None:
        self.engine = engine
        self._dispatcher = Dispatcher(engine, limits, observer, inspect)
        self.lanes = self._dispatcher.lanes
        self._limits = limits
        self._observer = observer
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
    async def submit(
        self, name: LaneName, tasks: Sequence[Task], call: Call = ..., *, resumed: bool = ...
    ) -> list[Slot[Output]]: ...
    @overload
    async def submit(
        self,
        name: LaneName,
        tasks: Sequence[Task],
        call: Call,
        reduce: Sequence[Reduce[Value]],
        *,
        resumed: bool = ...,
    ) -> list[Slot[Value]]: ...
    async def submit(
        self,
        name: LaneName,
        tasks: Sequence[Task],
        call: Call = ANYBODY,
        reduce: Sequence[Reduce[Value]] | None = None,
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
        with self._dispatcher.lock:
            if not resumed:
                demand = Demand(len(tasks), work.tokens, admitted=call.kept(work.tokens))
                work.predicted_seconds = self._admit(lane, call, demand)
            self._dispatcher.push(lane, work, maps=maps)
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
            self._observer.waited(name, min([slot.queue_seconds for slot in slots]))
        elif call.pending:
            call.pending.keep(work.tokens)
        return slots

    def _ended(self, lane: Lane, work: Work[Value]) -> list[Slot[Value]]:
        """Forget work that was computed, failed or cancelled, and return its tasks."""
        del self._open[work]
        if work.waiting:
            for _ in range(self._dispatcher.withdraw(lane, work)):
                self._observer.dropped(lane.name)
        if work.begun and not work.future.cancelled():  # a deadline's seconds count, though too few
            lane.margin.account(work.predicted_seconds, time.monotonic() - work.queued_at)
        slots, work.slots = work.slots, []  # a cycle of references
        return slots

    def seconds_alone(self, lane_name: LaneName, tokens: int, map_tokens: int = 0) -> float:
        """Return the predicted seconds of a request on an idle engine.

        `map_tokens` are the tokens of all layers whose maps it requests.
        """
        lane = self.lanes[lane_name]
        with self._dispatcher.lock:
            seconds = lane.text_pace.predict(tokens) + lane.map_pace.predict(map_tokens)
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
        finished = self._dispatcher.close(why)
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
        with self._dispatcher.lock:  # none of it begins meanwhile
            late = [work for work in self._open if work.due <= now and not work.future.done()]
            for work in late:
                if work.begun:
                    work.fail(EngineTimeout("the deadline came before all of it was computed"))
                    continue
                lane = self._open[work]
                self._observer.refused(lane.name, "deadline")
                self._observer.waited(lane.name, now - work.queued_at)
                before = lane.tokens_before(work.call.client)
                work.fail(deadline_passed(lane.wait(before, idle=False)))
        due = min([work.due for work in self._open if work.due > now], default=math.inf)
        if due < math.inf:
            self._sweep_later(due)

    def _admit(self, lane: Lane, call: Call, demand: Demand) -> float:
        """Return the predicted seconds of a request that is admitted. The caller holds the lock.

        Raises:
            Unprocessable, Overloaded: the request is refused.

        """
        try:
            return lane.admit(call, demand, idle=self._dispatcher.idle > 0)
        except Overloaded as refusal:
            self._observer.refused(lane.name, reason_of(refusal))
            raise

    def _late(self) -> str:
        return f"a batch takes more than {self._limits.batch_seconds:g} s"
