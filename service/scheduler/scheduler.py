"""Scheduler of an engine: admission, queues, results, deadlines and cancellation.

Each lane has a bounded queue. An idle engine computes a single text at once, and batches form only
from texts that wait: see `dispatch`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, overload

from service.engines.contract import Engine, MapsTask, Output, Task, TextTask
from service.errors import EngineTimeout, EngineUnavailable, ServiceError
from service.scheduler.admission import (
    BatchLimits,
    Demand,
    Forecast,
    RefusalReason,
    check_admission,
    deadline_passed,
    forecast,
    retry_after,
)
from service.scheduler.dispatch import Dispatcher, Inspect, Part
from service.scheduler.lanes import Lane, LaneName
from service.scheduler.promises import Promise
from service.scheduler.submission import ANYBODY, Caller, Reduce, Submission, TaskResult, Value


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
        self._observer = observer
        self._closed = ""
        """Reason why all requests are refused; empty while the scheduler is open."""
        self._numbers = itertools.count()
        self._map_numbers = itertools.count(-(2**62))

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

    def hold_place(self, lane_name: LaneName, demand: Demand) -> Caller:
        """Admit texts before they are tokenised; return their caller with a place in the queue.

        Raises:
            Overloaded: the queue has no room, or the deadline cannot be met.

        """
        lane, caller = self.lanes[lane_name], demand.caller
        in_time = caller.finish_by > time.monotonic()
        if in_time and not demand.tokens and not lane.congestion.standing:
            return caller  # tokenised at once, and admitted by `submit`
        if not demand.tokens or not caller.reservation:
            self._admit(lane, demand, lambda _: None)
            return caller
        place = Promise(demand.tokens)
        self._admit(lane, demand, lambda _: lane.places.add(caller.client, place))
        caller.reservation.on_release(place.end)
        return replace(caller, place=place)

    @overload
    async def submit(
        self, lane_name: LaneName, tasks: Sequence[Task], caller: Caller = ...
    ) -> list[TaskResult[Output]]: ...
    @overload
    async def submit(
        self,
        lane_name: LaneName,
        tasks: Sequence[Task],
        caller: Caller,
        reduce: Sequence[Reduce[Value]],
    ) -> list[TaskResult[Value]]: ...
    async def submit(
        self,
        lane_name: LaneName,
        tasks: Sequence[Task],
        caller: Caller = ANYBODY,
        reduce: Sequence[Reduce[Value]] | None = None,
    ) -> list[TaskResult[Value]]:
        """Admit and compute the first tasks of a request, at least one, all or none.

        Cancelling the call drops the tasks that still wait. The remaining promised work of the
        caller is submitted by `resume`.

        Raises:
            Unprocessable: the request alone exceeds the queue.
            Overloaded: the queue has no room, or the predicted or actual wait is too long.
            EngineTimeout: the deadline passed after some of the tasks had begun.
            ServiceError: the engine failed.

        """
        if not self.engine.alive:
            raise EngineUnavailable(f"the {self.engine.name} engine is down", retry_after_seconds=5)
        lane = self.lanes[lane_name]
        seconds = self._limits.queue_seconds
        submission = Submission(tasks, self._numbers, caller, reduce, wait_seconds=seconds)

        def push(expected: Forecast) -> None:
            submission.predicted_seconds = expected.total
            if caller.promise:
                lane.promises.add(caller.client, caller.promise, caller.finish_by)
            self._dispatcher.push(lane, submission)

        tokens = sum(task.tokens for task in tasks)
        if caller.promise:
            caller.promise.keep(tokens)
        caller.submitted_to(self.engine.name)
        self._admit(lane, Demand.of_tokenized(caller, len(tasks), tokens), push)
        try:
            results = await self._answered(lane, submission)
        except EngineTimeout:  # account for the seconds so far, though it needed more
            lane.margin.account(submission.predicted_seconds, submission.seconds)
            raise
        self._observer.waited(lane_name, min(result.queue_seconds for result in results))
        lane.margin.account(submission.predicted_seconds, submission.seconds)
        return results

    @overload
    async def resume(
        self, lane_name: LaneName, tasks: Sequence[Task], *, caller: Caller = ...
    ) -> list[TaskResult[Output]]: ...
    @overload
    async def resume(
        self,
        lane_name: LaneName,
        tasks: Sequence[Task],
        reduce: Sequence[Reduce[Value]],
        caller: Caller = ...,
    ) -> list[TaskResult[Value]]: ...
    async def resume(
        self,
        lane_name: LaneName,
        tasks: Sequence[Task],
        reduce: Sequence[Reduce[Value]] | None = None,
        caller: Caller = ANYBODY,
    ) -> list[TaskResult[Value]]:
        """Compute further tasks of one kind of an admitted request; maps go before all texts.

        Decompositions are queued in fair order, as texts are. Each reduction of an output is called
        in the worker's thread; without reductions, the outputs are kept.

        Raises:
            EngineTimeout: the deadline passed.
            ServiceError: the engine failed.

        """
        lane = self.lanes[lane_name]
        continues = isinstance(tasks[0], MapsTask)
        numbers = self._map_numbers if continues else self._numbers
        submission = Submission(tasks, numbers, caller, reduce)
        submission.begun = True
        tokens = sum(task.tokens for task in tasks)
        if caller.place and not continues:
            caller.place.keep(tokens)
        with self._dispatcher.lock:
            if self._closed:
                raise self._stopped()
            self._dispatcher.push(lane, submission)
        results = await self._answered(lane, submission)
        if caller.promise:
            caller.promise.keep(tokens)
        return results

    def seconds_alone(self, lane_name: LaneName, tokens: int, map_tokens: int = 0) -> float:
        """Return the predicted seconds of a request on an idle engine.

        `map_tokens` are the tokens of all layers whose maps it requests.
        """
        lane, most = self.lanes[lane_name], self._limits.max_batch_tokens
        with self._dispatcher.lock:
            seconds = lane.text_pace.predict(tokens, most)
            seconds += lane.map_pace.predict(map_tokens, most)
        return seconds / self._dispatcher.workers.threads

    def fail_overdue(self) -> None:
        """Fail the requests whose batch takes longer than `batch_seconds`."""
        for batch in self._dispatcher.overdue():
            for entry in batch.entries:
                entry.submission.fail(EngineTimeout(self._late()))

    def close(self, why: str = "the service is stopping") -> bool:
        """Fail all waiting requests, let running batches finish, then release the engine.

        `why` is the error of waiting and later requests. Return whether all batches have finished.
        A hanging call keeps its engine and its thread.
        """
        with self._dispatcher.lock:
            self._closed = why
            waiting = [entry for lane in self.lanes.values() for entry in lane.clear()]
        for entry in waiting:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
                entry.submission.loop.call_soon_threadsafe(entry.submission.fail, self._stopped())
        finished = self._dispatcher.close()
        if finished:
            self.engine.close()
        return finished

    async def _answered(self, lane: Lane, submission: Submission[Value]) -> list[TaskResult[Value]]:
        self._keep_time(lane, submission)
        try:
            return await submission.future
        finally:
            self._dropped(lane, self._withdraw(lane, submission))
            submission.release()

    def _keep_time(self, lane: Lane, submission: Submission[object]) -> None:
        """Fail the submission if it is due, else set a timer for it."""
        left = submission.due - time.monotonic()
        if left == math.inf:
            return
        if left > 0:
            submission.timer = submission.loop.call_later(left, self._keep_time, lane, submission)
        elif submission.begun:
            submission.fail(EngineTimeout("the deadline came before all of it was computed"))
        elif not submission.future.done():
            self._observer.refused(lane.name, "deadline")
            self._observer.waited(lane.name, time.monotonic() - submission.queued_at)
            with self._dispatcher.lock:
                wait = self._forecast(lane, Demand(submission.caller, 0, 0)).wait
            submission.fail(deadline_passed(retry_after(wait)))

    def _admit(self, lane: Lane, demand: Demand, push: Callable[[Forecast], None]) -> None:
        with self._dispatcher.lock:
            if self._closed:
                raise self._stopped()
            expected = self._forecast(lane, demand)
            refusal = check_admission(lane, demand, expected, self._limits)
            if not refusal:
                push(expected)
        if refusal:
            self._observer.refused(lane.name, refusal.reason)
            raise refusal.error

    def _forecast(self, lane: Lane, demand: Demand) -> Forecast:
        lanes, workers = self.lanes.values(), self._dispatcher.workers
        return forecast(lane, demand, lanes, self._limits, workers)

    def _stopped(self) -> EngineUnavailable:
        return EngineUnavailable(self._closed, retry_after_seconds=5)

    def _late(self) -> str:
        return f"a batch takes more than {self._limits.batch_seconds:g} s"

    def _withdraw(self, lane: Lane, submission: Submission[object]) -> int:
        """Remove a submission's waiting entries from the queue; return the number of texts."""
        if not any(entry.waiting for entry in submission.entries):
            return 0
        with self._dispatcher.lock:
            waiting = [entry for entry in submission.entries if entry.waiting]
            for entry in waiting:
                lane.remove(entry)
        return sum(isinstance(entry.task, TextTask) for entry in waiting)

    def _dropped(self, lane: Lane, texts: int) -> None:
        for _ in range(texts):
            self._observer.dropped(lane.name)

    def _finished(self, part: Part) -> None:
        """Pass a part to the event loop. Runs in a worker's thread."""
        dropped = 0
        if isinstance(part.outcome, ServiceError):
            dropped = sum(self._withdraw(part.lane, entry.submission) for entry in part.entries)
        loop = part.entries[0].submission.loop
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            loop.call_soon_threadsafe(self._answer, part, dropped)

    def _answer(self, part: Part, dropped: int) -> None:
        lane, entries, outcome, began, seconds = part
        if isinstance(outcome, ServiceError):
            _log.error("a batch of the %s lane failed", lane.name, exc_info=outcome)
            for entry in entries:
                entry.submission.fail(outcome)
            self._observer.batch_failed(lane.name)
            self._dropped(lane, dropped)
            return
        for reduced in outcome:
            reduced.answer(began, seconds)
        tasks = [entry.task for entry in entries]
        self._observer.batch_finished(lane.name, tasks, seconds)
