"""Admission: bounds on the tokens and texts that wait in a lane, and on their time."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from service.errors import DeadlinePassed, Overloaded, Unprocessable
from service.scheduler.lanes import Lane
from service.scheduler.submission import Caller

MORE_TOKENS = 1.25
"""Factor by which texts may exceed the estimate of their tokens, and still count as admitted."""
RefusalReason = Literal["tokens", "texts", "wait", "deadline"]
"""The bound for which a request was not admitted, or given up before any of it was computed."""


class Workers(NamedTuple):
    """The threads that compute."""

    threads: int
    idle: int


class Refusal(NamedTuple):
    """A request that is not admitted."""

    reason: RefusalReason
    error: Overloaded


@dataclass(frozen=True)
class BatchLimits:
    """Bounds on batches and on what waits for them."""

    max_batch_tokens: int
    """Tokens of a batch; a longer text goes alone."""
    max_queue_tokens: int
    """Tokens waiting in a lane; a request takes at most half of what is free."""
    max_queue_texts: int = 2**14
    """Texts waiting in a lane; a request takes at most half of what is free."""
    queue_seconds: float = math.inf
    """Waiting time until the first batch of a request."""
    queue_target_seconds: float = math.inf
    """Waiting time that all requests have for no longer than a moment."""
    batch_seconds: float = math.inf
    """Computing time of a batch; one that takes longer hangs."""


@dataclass(frozen=True)
class Demand:
    """A request that asks to be admitted."""

    caller: Caller
    texts: int
    tokens: int
    tokenizing_seconds: float | None = None
    """Time until its texts are tokenised; None once they are, and the tokens are exact."""
    admitted: bool = False
    """Whether it was admitted when its place was held: only its deadline is checked again, by what
    batches took meanwhile."""

    @property
    def ahead(self) -> int:
        """Tokens that have to be computed after these before the deadline, and wait nowhere yet."""
        return self.caller.promise.needed if self.caller.promise else 0

    @property
    def writing_seconds(self) -> float:
        """Seconds between the last token and the deadline."""
        return self.caller.promise.writing_seconds if self.caller.promise else 0.0

    @classmethod
    def of_tokenized(cls, caller: Caller, texts: int, tokens: int) -> Demand:
        """Return the demand of texts to be queued, which leave the place that was held for them."""
        place, demand = caller.place, cls(caller, texts, tokens)
        if place is None:
            return demand
        admitted = tokens + demand.ahead <= MORE_TOKENS * place.tokens
        if caller.promise:
            place.end()  # all that follows is promised
        else:
            place.keep(tokens)
        return cls(caller, texts, tokens, admitted=admitted)


@dataclass(frozen=True)
class Forecast:
    """When a request would begin and end, in seconds from now."""

    wait: float
    """Until its first text begins."""
    total: float
    """Until its last text is computed."""
    ahead: int = 0
    """Tokens that have to be computed from then on, with those promised to others."""
    rest: float = 0.0
    """Until those are computed, from then on."""


def forecast(
    lane: Lane, demand: Demand, others: Iterable[Lane], limits: BatchLimits, workers: Workers
) -> Forecast:
    """What a request has to expect, were it to come now, at the pace of the last batches.

    Args:
        lane: where it would wait.
        demand: the request.
        others: lanes with which this one shares the engine.
        limits: of batches.
        workers: who computes them.

    """
    most = limits.max_batch_tokens
    last_batch = min(demand.tokens, most)
    client = demand.caller.client
    before = lane.texts.tokens_before(client)
    before_last = lane.texts.tokens_before(client, demand.tokens - last_batch)
    if not demand.admitted:  # other places that are open were taken later
        before_last += lane.places.before(client, demand.tokens)
    shared = [other for other in others if other is not lane and other.queued_tokens]
    share = lane.share / (lane.share + sum(other.share for other in shared))
    elsewhere = sum(other.seconds(other.texts.tokens, most) for other in shared)
    running = 0.0 if workers.idle else lane.batch_seconds

    def until(tokens: int) -> float:
        """Return the seconds until all maps, and some tokens of texts behind them, have begun."""
        work = lane.seconds(tokens, most)
        return (min(work / share, work + elsewhere) + running) / workers.threads

    ahead = demand.ahead
    ahead += lane.promises.before(client, ahead)
    rest = lane.text_pace.predict(ahead, most) / share / workers.threads
    total = until(before_last) + lane.text_pace.predict(last_batch, most)
    return Forecast(until(before), total, ahead, rest)


def check_admission(
    lane: Lane, demand: Demand, expected: Forecast, limits: BatchLimits
) -> Refusal | None:
    """The refusal of a request that cannot wait in a lane now; None if it can.

    Args:
        lane: where it would wait.
        demand: the request.
        expected: when it would begin and end.
        limits: the bounds.

    Raises:
        Unprocessable: the request alone exceeds a bound.

    """
    now = time.monotonic()
    left = demand.caller.finish_by - now
    if left <= 0:
        return Refusal("deadline", deadline_passed(retry_after(expected.wait)))
    refusal = None if demand.admitted else _check_queue(lane, demand, expected, limits, now)
    return refusal or _check_deadline(lane, demand, expected, now)


def _check_queue(
    lane: Lane, demand: Demand, expected: Forecast, limits: BatchLimits, now: float
) -> Refusal | None:
    """Return the refusal of a request for which the queue has no room; None if it has.

    Raises:
        Unprocessable: the request alone exceeds a bound.

    """
    held_tokens = lane.queued_tokens + lane.places.tokens
    bounds: tuple[tuple[RefusalReason, int, int, int], ...] = (
        ("tokens", demand.tokens, held_tokens, limits.max_queue_tokens),
        ("texts", demand.texts, lane.queued_texts, limits.max_queue_texts),
    )
    exact = demand.tokenizing_seconds is None
    for unit, size, _, limit in bounds:
        if 2 * size > limit and exact:
            raise Unprocessable(
                f"the request has {size} {unit}; at most {limit // 2} are taken at a time, "
                "send it in parts"
            )
    for unit, size, held, limit in bounds:
        if 2 * min(size, limit // 2) > limit - held:
            why = f"the queue holds {held} of {limit} {unit}"
            if 2 * size > 2:
                why += f", and a request takes at most half of the rest: this one has {size}"
            return _refused(unit, why, expected.wait)
    patience = min(demand.caller.finish_by - now, limits.queue_seconds)
    lane.congestion.observe(expected.wait, now)
    allowed = lane.congestion.most_seconds(patience)
    if expected.wait > allowed:
        why = f"a wait of {expected.wait:.1f} s is predicted, and {allowed:.1f} s are allowed"
        return _refused("wait", why, expected.wait)
    return None


def _check_deadline(lane: Lane, demand: Demand, expected: Forecast, now: float) -> Refusal | None:
    """Return the refusal of a request that would end after its deadline; None if it would not."""
    left = demand.caller.finish_by - now - demand.writing_seconds
    total = expected.total * lane.margin.factor + expected.rest
    total += demand.tokenizing_seconds or 0.0
    if total <= left:
        return None
    lane.margin.relax()
    if not lane.queued_tokens and expected.ahead == demand.ahead:
        lane.relax()
    why = f"it would take about {total:.1f} s, and {left:.1f} s are left of its time"
    return _refused("deadline", why, _late(lane, demand, expected, total - left, now))


def _late(lane: Lane, demand: Demand, expected: Forecast, seconds: float, now: float) -> float:
    """Return the seconds until a request has time for all that it needs.

    Args:
        lane: where it would wait.
        demand: the request.
        expected: when it would end now.
        seconds: time by which that is too late.
        now: `time.monotonic()`.

    """
    if not expected.rest:
        return seconds
    rate = expected.ahead / expected.rest
    most = expected.ahead - seconds * rate
    client, needed = demand.caller.client, demand.ahead
    return lane.promises.seconds_until_room(client, needed, most, rate, now)


def _refused(reason: RefusalReason, why: str, seconds: float) -> Refusal:
    error = Overloaded(why, retry_after_seconds=retry_after(seconds), reason=f"queue_{reason}")
    return Refusal(reason, error)


def retry_after(wait: float) -> int:
    """Whole seconds after which to try again: once or twice the wait, so that not all come then."""
    return max(1, round(random.uniform(1, 2) * wait))  # noqa: S311 - no secret


def deadline_passed(retry_after_seconds: int) -> DeadlinePassed:
    """The error of a request whose waiting time is over."""
    return DeadlinePassed(
        "the request waited for as long as it may",
        retry_after_seconds=retry_after_seconds,
        reason="queue_deadline",
    )
