"""Lanes: fair queues with a share of the engine's time, their forecasts and admission.

Callers hold the dispatcher's lock.
"""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from service.engines.contract import BatchCost, Engine, Task, TextTask
from service.errors import DeadlinePassed, Overloaded, Unprocessable
from service.scheduler.call import Call, Demand, PendingCalls, RefusalReason, retry_after
from service.scheduler.queue import FairQueue, Slot, nearest

LaneName = Literal["encode", "attention"]

LANE_SHARES: dict[LaneName, float] = {"encode": 3.0, "attention": 1.0}
"""Weights of the lanes' shares of busy time while tasks wait in both: a flood of /attention
leaves /encode 3/4."""
MAP_COST = BatchCost(fixed=8, token=1, padding=1)
"""Cost of batches of maps, which an engine computes one by one: only like lengths are grouped."""
TOO_LATE = "the request waited for as long as it may"
WINDOW_BATCHES = 4
"""Number of full batches in the window from which the texts of a batch are chosen. It bounds how
often a text is passed over for others nearer in length."""
WEIGHT = 0.1
"""Weight of the last batch, or request, in all averages."""
RELAXING = 0.05
"""Share by which a prediction is reduced for each request that was refused because of it."""
SHORTEST_PREDICTION, LARGEST_RATIO = 0.1, 3.0
"""Minimum seconds of a prediction whose error counts, and the largest ratio of actual to predicted
seconds, to which larger ratios are clipped."""
INTERVAL_SECONDS = 0.1
"""Length of an interval in which a queue stands or not."""


@dataclass(frozen=True)
class BatchLimits:
    """Bounds on batches and queues."""

    max_batch_tokens: int
    """Maximum tokens of a batch; a longer text is a batch of its own."""
    max_queue_tokens: int
    """Maximum tokens waiting in a lane; a request takes at most half of the free ones."""
    max_queue_texts: int = 2**14
    """Maximum texts waiting in a lane; a request takes at most half of the free ones."""
    queue_seconds: float = math.inf
    """Maximum seconds until the first batch of a request."""
    queue_target_seconds: float = math.inf
    """Target of the shortest wait within an interval; see `Congestion`."""
    batch_seconds: float = math.inf
    """Maximum seconds of a batch; a longer one is hanging."""


Event = Literal["failed_batches", "dropped_texts", "queue_refused", "engine_restarts"]
"""Event that is only counted, by the name of its counter; a batch may fail in part, and a text is
dropped from the queue once its request has ended."""


class Observer(Protocol):
    """Receiver of the events of a model's schedulers and inputs, for metrics."""

    def count(self, event: Event, *labels: str) -> None:
        """Count an event of a lane, if it is of one, and for the reason of a refusal."""

    def tokenized(self, lengths: Sequence[int], warnings: Mapping[str, int]) -> None:
        """Count the tokens of each text of a request, and its texts by name of their warning."""

    def pictures_read(self, seconds: float) -> None:
        """Record the seconds until the pictures of a request were decoded and prepared."""

    def batch_finished(self, lane: LaneName, tasks: Sequence[Task], seconds: float) -> None:
        """Count a computed batch."""

    def waited(self, lane: LaneName, seconds: float) -> None:
        """Record the seconds until a request's first batch began, or until its wait was over."""


@dataclass
class _Size:
    """Number of batches of about one size, and their mean tokens and seconds."""

    batches: int = 0
    tokens: float = 0.0
    seconds: float = 0.0


class Pace:
    """Time of a batch by its tokens, interpolated between the sizes measured so far.

    Sizes up to each power of two have their own mean. Hours of single short texts therefore leave
    the mean of full batches unchanged, and a nearly full batch updates it. A batch much larger than
    all before is predicted to be fast: the first such batch corrects a prediction that is too
    short, whereas one that is too long would keep such batches from being admitted.
    """

    def __init__(self, max_batch_tokens: int) -> None:
        self._most = max_batch_tokens
        self._sizes: dict[int, _Size] = {}
        self._points: list[tuple[float, float]] = []
        """Mean tokens and seconds of each size, both ascending."""

    def account(self, tokens: int, seconds: float) -> None:
        """Record the tokens of a batch and the seconds that a worker computed it."""
        size = self._sizes.setdefault((tokens - 1).bit_length(), _Size())
        size.batches += 1
        weight = max(WEIGHT, 1 / size.batches)
        size.tokens += weight * (tokens - size.tokens)
        size.seconds += weight * (seconds - size.seconds)
        # more tokens never take less: isotonic regression by pooling adjacent violators
        pools: list[tuple[list[float], float, float]] = []
        for _, mean in sorted(self._sizes.items()):
            sizes, pooled, number = [mean.tokens], mean.seconds, min(mean.batches, 1 / WEIGHT)
            while pools and pools[-1][1] > pooled:
                fewer, longer, more = pools.pop()
                pooled = (pooled * number + longer * more) / (number + more)
                sizes, number = fewer + sizes, number + more
            pools.append((sizes, pooled, number))
        self._points = [(one, pooled) for sizes, pooled, _ in pools for one in sizes]

    def relax(self) -> None:
        """Reduce all predictions a little, as no batch comes to correct them."""
        for size in self._sizes.values():
            size.seconds *= 1 - RELAXING
        self._points = [(tokens, seconds * (1 - RELAXING)) for tokens, seconds in self._points]

    def predict(self, tokens: int) -> float:
        """Return the predicted seconds of a worker for some tokens, in batches of maximum size."""
        points, seconds = self._points, 0.0
        full, last = divmod(tokens, self._most)
        for batches, size in ((full, self._most), (1, last)) if points else ():
            if not batches * size:
                continue
            within = min(max(size, points[0][0]), 2 * points[-1][0])
            above = bisect.bisect(points, (within, math.inf), 1, max(1, len(points) - 1))
            (x0, y0), (x1, y1) = points[above - 1], points[min(above, len(points) - 1)]
            seconds += batches * (y0 + (y1 - y0) * (within - x0) / (x1 - x0 or 1))
        return seconds


class Margin:
    """Ratio of actual to predicted seconds of requests: its mean, and its mean deviation.

    The bound is that of TCP's retransmission timer (RFC 6298), with two deviations.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        """Factor ≥ 1 by which predictions are multiplied, so that most requests end in time."""
        self._set(1.0, 0.0)

    def account(self, predicted: float, seconds: float) -> None:
        """Record the predicted and the actual seconds of a request."""
        if predicted >= SHORTEST_PREDICTION:
            error = min(seconds / predicted, LARGEST_RATIO) - self._mean
            deviation = self._deviation + WEIGHT * (abs(error) - self._deviation)
            self._set(self._mean + WEIGHT * error, deviation)

    def relax(self) -> None:
        """Move the ratio towards 1 after a refusal, as no request comes to correct it."""
        self._set(self._mean + RELAXING * (1 - self._mean), self._deviation * (1 - RELAXING))

    def _set(self, mean: float, deviation: float) -> None:
        self._mean, self._deviation = mean, deviation
        self.factor = max(1.0, mean + 2 * deviation)


class Congestion:
    """Detector of a standing queue of a lane, by the predicted waits of its requests.

    A standing queue, unlike a burst, never empties, and delays every request. A queue stands if its
    shortest wait within an interval exceeds the target (controlled delay: K. Nichols, V. Jacobson,
    "Controlling queue delay", ACM Queue 2012; B. Maurer, "Fail at scale", ACM Queue 2015). While it
    stands, requests are admitted up to a wait of twice the target; otherwise up to their own
    longest wait.
    """

    def __init__(self, target_seconds: float = math.inf) -> None:
        self.standing = False
        self._target = target_seconds
        self._shortest = 0.0
        """Shortest predicted wait of the interval."""
        self._ends = -math.inf
        """`time.monotonic()` at the end of the interval."""

    def most_seconds(self, wait: float, patience: float, now: float) -> float:
        """Return the longest wait for which a request is admitted, after recording its `wait`.

        `patience` is its longest wait by its own deadline and the queue's limit, `now` is
        `time.monotonic()`.
        """
        if now >= self._ends:
            self.standing = self._shortest > self._target
            self._shortest, self._ends = wait, now + INTERVAL_SECONDS
        self._shortest = min(self._shortest, wait)
        if wait <= self._target:
            self.standing = False
        return min(patience, 2 * self._target) if self.standing else patience


class Lane(FairQueue):
    """Queue of one kind of work."""

    other: Lane
    """Lane with which the engine's time is shared."""

    def __init__(
        self, name: LaneName, limits: BatchLimits, engine: Engine, observer: Observer
    ) -> None:
        """Initialise an empty queue, with the forecasts that the engine measured."""
        super().__init__()
        self.name = name
        self.share = LANE_SHARES[name]
        self.served = 0.0
        """Busy seconds divided by the share; the lane with the smaller value goes first."""
        self.margin = Margin()
        self.congestion = Congestion(limits.queue_target_seconds)
        self.pending = PendingCalls()
        """Work that admitted requests still have to submit."""
        self.estimates = PendingCalls()
        """Tokens of admitted texts that are being tokenised."""
        self._limits = limits
        self._observer = observer
        self._most = limits.max_batch_tokens
        self._cost = engine.cost
        self._threads = engine.concurrency
        self.text_pace = Pace(self._most)
        """Pace of batches of texts. Decompositions and pending work count as tokens of texts."""
        self.map_pace = Pace(self._most)
        self.batch_seconds = 0.0
        """Mean seconds of a batch of any kind; 0 before the first."""
        for tokens, seconds in engine.measured:
            self.text_pace.account(tokens, seconds)
            self._average(seconds)
        for tokens, seconds in engine.measured_maps or engine.measured:
            self.map_pace.account(tokens, seconds)

    def next_batch(self, max_batch_tokens: int, *, beside: bool = False) -> list[Slot[object]]:
        """Take a batch: the first text in fair order, and texts nearest to its length; or nothing.

        Maps go before texts. A text longer than `max_batch_tokens` is a batch of its own. Tasks
        that are due are removed from the queue and left out of the batch. For `beside` see
        `FairQueue.take`.
        """
        now = time.monotonic()
        while self.queued_texts:
            if maps := self.maps.order:
                window, cost = maps[:max_batch_tokens], MAP_COST
            else:
                window, cost = self.window(WINDOW_BATCHES * max_batch_tokens), self._cost
            if late := [slot for slot in window if slot.work.due <= now]:
                for slot in late:
                    self.remove(slot)
                continue
            batch = nearest(window, max_batch_tokens, cost)
            self.take(batch, beside=beside)
            return batch
        return []

    def account(self, slots: Sequence[Slot[object]], seconds: float) -> None:
        """Update the forecasts by the seconds of a computed batch."""
        self._average(seconds)
        tokens = sum([slot.tokens for slot in slots])
        if slots[0].queue is self.maps:
            self.map_pace.account(tokens, seconds)
        elif all(isinstance(slot.task, TextTask) for slot in slots):
            self.text_pace.account(tokens, seconds)

    def _average(self, seconds: float) -> None:
        weight = WEIGHT if self.batch_seconds else 1.0
        self.batch_seconds += weight * (seconds - self.batch_seconds)

    def seconds(self, text_tokens: int) -> float:
        """Return the predicted seconds of a worker for all maps and some tokens of texts."""
        seconds = self.text_pace.predict(text_tokens)
        return seconds + self.map_pace.predict(self.maps.tokens) if self.maps.tokens else seconds

    def wait(self, tokens: int, *, idle: bool) -> float:
        """Return the predicted seconds until all maps, and then some tokens of texts, have begun.

        `idle` is whether a thread computes nothing.
        """
        seconds, other = self.seconds(tokens) if tokens or self.maps.tokens else 0.0, self.other
        if seconds and other.queued_texts:
            seconds += min(seconds * other.share / self.share, other.seconds(other.text_tokens))
        return (seconds if idle else seconds + self.batch_seconds) / self._threads

    def admit(self, call: Call, demand: Demand, *, idle: bool) -> float:
        """Return the predicted seconds of a request that arrives now and can be queued."""
        now, tokens = time.monotonic(), demand.tokens
        before = before_last = self.tokens_before(call.client) if self.queued_texts else 0
        wait = self.wait(before, idle=idle)
        left = call.finish_by - now
        if left <= 0:
            raise self.refused("deadline", TOO_LATE, wait, DeadlinePassed)
        if not demand.admitted:
            self._check_room(demand, wait)
            patience = min(left, self._limits.queue_seconds)
            allowed = self.congestion.most_seconds(wait, patience, now)
            if wait > allowed:
                why = f"a wait of {wait:.1f} s is predicted, and {allowed:.1f} s are allowed"
                raise self.refused("wait", why, wait)
        last_batch = min(tokens, self._most)
        if tokens > last_batch:
            before_last = self.tokens_before(call.client, tokens - last_batch)
        if self.estimates.open and not demand.admitted:  # which has its place before the others
            before_last += self.estimates.before(call.client, tokens)
        total = wait if before_last == before else self.wait(before_last, idle=idle)
        total += self.text_pace.predict(last_batch)
        end = total * self.margin.factor + demand.tokenizing_seconds
        if end > left or (call.pending and left < math.inf):
            self._check_deadline(call, end, left, now)
        return total

    def _check_room(self, demand: Demand, wait: float) -> None:
        """Raise if a request exceeds half of the queue's room."""
        limits, tokens = self._limits, self.queued_tokens
        if self.estimates.open:
            tokens += self.estimates.tokens
        bounds: tuple[tuple[RefusalReason, int, int, int], ...] = (
            ("tokens", demand.tokens, tokens, limits.max_queue_tokens),
            ("texts", demand.texts, self.queued_texts, limits.max_queue_texts),
        )
        for unit, size, _, limit in bounds:
            if 2 * size > limit and demand.exact:
                raise Unprocessable(
                    f"the request has {size} {unit}; at most {limit // 2} are taken at a time, "
                    "send it in parts"
                )
        for unit, size, held, limit in bounds:
            if held + 2 * min(size, limit // 2) > limit:
                why = f"the queue holds {held} of {limit} {unit}"
                if size > 1:
                    why += f", and a request takes at most half of the rest: this one has {size}"
                raise self.refused(unit, why, wait)

    def _check_deadline(self, call: Call, end: float, left: float, now: float) -> None:
        """Raise if a request whose tokens are computed in `end` seconds has only `left` ones."""
        needed, ahead, rest = 0, 0, 0.0
        if call.pending:
            left -= call.pending.writing_seconds
            needed = call.pending.needed
        if needed:
            ahead = needed + self.pending.before(call.client, needed)
            other = self.other.share if self.other.queued_texts else 0.0
            rest = self.text_pace.predict(ahead) * (1 + other / self.share) / self._threads
        end += rest
        if end <= left:
            return
        late = (end - left) / self.margin.factor  # work ahead is computed at the pace itself
        self.margin.relax()
        if not self.queued_tokens and ahead == needed:  # no batch comes to correct the forecasts
            self.text_pace.relax()
            self.map_pace.relax()
            self.batch_seconds *= 1 - RELAXING
        if rest:
            rate = ahead / rest
            most = ahead - (end - left) * rate
            late = self.pending.seconds_until_room(call.client, needed, most, rate, now)
        why = f"it would take about {end:.1f} s, and {left:.1f} s are left of its time"
        raise self.refused("deadline", why, late)

    def refused(
        self,
        reason: RefusalReason,
        why: str,
        seconds: float,
        kind: type[Overloaded] = Overloaded,
    ) -> Overloaded:
        """Return, and count, the error of a request that would be admitted after some seconds."""
        self._observer.count("queue_refused", self.name, reason)
        return kind(why, retry_after_seconds=retry_after(seconds), reason=f"queue_{reason}")
