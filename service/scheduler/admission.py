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
"""Maximum ratio of a request's tokens to their estimate for the request to remain admitted."""
RefusalReason = Literal["tokens", "texts", "wait", "deadline"]
"""Bound for which a request was refused, or cancelled before any of its texts was computed."""


class Workers(NamedTuple):
    """Numbers of computing threads."""

    threads: int
    idle: int


class Refusal(NamedTuple):
    """Refusal of a request."""

    reason: RefusalReason
    error: Overloaded


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


@dataclass(slots=True)
class Demand:
    """Texts and tokens of a request for admission."""

    caller: Caller
    texts: int
    tokens: int
    tokenizing_seconds: float | None = None
    """Seconds until the texts are tokenised; None once they are, and `tokens` is exact."""
    admitted: bool = False
    """Whether the request was admitted when its place was held. Only its deadline is checked again,
    at the pace of the batches since then."""
    exact: bool = False
    """Whether `tokens` is exact although the inputs are not read yet, as of pictures."""

    @property
    def ahead(self) -> int:
        """Further tokens to compute before the deadline, which are not queued yet."""
        return self.caller.promise.needed if self.caller.promise else 0

    @property
    def writing_seconds(self) -> float:
        """Seconds between the last token and the deadline."""
        return self.caller.promise.writing_seconds if self.caller.promise else 0.0

    @classmethod
    def of_tokenized(cls, caller: Caller, texts: int, tokens: int) -> Demand:
        """Return the demand of texts to be queued, and release the place held for them."""
        place, demand = caller.place, cls(caller, texts, tokens)
        if place is None:
            return demand
        admitted = tokens + demand.ahead <= MORE_TOKENS * place.tokens
        if caller.promise:
            place.end()  # the promise covers all further work
        else:
            place.keep(tokens)
        return cls(caller, texts, tokens, admitted=admitted)


class Forecast(NamedTuple):
    """Predicted start and end of a request, in seconds from now."""

    wait: float
    """Seconds until the first text begins."""
    total: float
    """Seconds until the last text is computed."""
    ahead: int = 0
    """Tokens to compute after the last text, tokens promised to other requests included."""
    rest: float = 0.0
    """Seconds from the last text until the tokens of `ahead` are computed."""


def forecast(
    lane: Lane, demand: Demand, others: Iterable[Lane], limits: BatchLimits, workers: Workers
) -> Forecast:
    """Predict start and end of a request that arrives now, at the pace of the last batches."""
    most = limits.max_batch_tokens
    last_batch = min(demand.tokens, most)
    client = demand.caller.client
    before = before_last = lane.texts.tokens_before(client)
    if demand.tokens > most:
        before_last = lane.texts.tokens_before(client, demand.tokens - last_batch)
    if not demand.admitted:  # an admitted request took its place before the other open ones
        before_last += lane.places.before(client, demand.tokens)
    share, elsewhere = 1.0, 0.0
    if shared := [other for other in others if other is not lane and other.queued_tokens]:
        share = lane.share / (lane.share + sum(other.share for other in shared))
        elsewhere = sum(other.seconds(other.texts.tokens, most) for other in shared)
    running = 0.0 if workers.idle else lane.batch_seconds

    def until(tokens: int) -> float:
        """Return the seconds until all maps, and then some tokens of texts, have begun."""
        work = lane.seconds(tokens, most)
        return (min(work / share, work + elsewhere) + running) / workers.threads

    ahead, rest, wait = demand.ahead, 0.0, until(before)
    ahead += lane.promises.before(client, ahead)
    if ahead:
        rest = lane.text_pace.predict(ahead, most) / share / workers.threads
    total = wait if before_last == before else until(before_last)
    return Forecast(wait, total + lane.text_pace.predict(last_batch, most), ahead, rest)


def check_admission(
    lane: Lane, demand: Demand, expected: Forecast, limits: BatchLimits
) -> Refusal | None:
    """Return the refusal of a request that cannot be queued now; None if it can."""
    now = time.monotonic()
    left = demand.caller.finish_by - now
    if left <= 0:
        return Refusal("deadline", deadline_passed(retry_after(expected.wait)))
    refusal = None if demand.admitted else _check_queue(lane, demand, expected, limits, now)
    return refusal or _check_deadline(lane, demand, expected, now)


def _check_queue(
    lane: Lane, demand: Demand, expected: Forecast, limits: BatchLimits, now: float
) -> Refusal | None:
    """Return the refusal of a request that exceeds the queue's room or wait; None if none does."""
    free_tokens = limits.max_queue_tokens - lane.queued_tokens - lane.places.tokens
    free_texts = limits.max_queue_texts - lane.queued_texts
    if 2 * demand.tokens > free_tokens or 2 * demand.texts > free_texts:
        refusal = _check_room(demand, free_tokens, free_texts, limits, expected)
        if refusal:
            return refusal
    patience = min(demand.caller.finish_by - now, limits.queue_seconds)
    lane.congestion.observe(expected.wait, now)
    allowed = lane.congestion.most_seconds(patience)
    if expected.wait > allowed:
        why = f"a wait of {expected.wait:.1f} s is predicted, and {allowed:.1f} s are allowed"
        return _refused("wait", why, expected.wait)
    return None


def _check_room(
    demand: Demand, free_tokens: int, free_texts: int, limits: BatchLimits, expected: Forecast
) -> Refusal | None:
    """Return the refusal of a request that exceeds half of the queue's room; None if none does."""
    bounds: tuple[tuple[RefusalReason, int, int, int], ...] = (
        ("tokens", demand.tokens, free_tokens, limits.max_queue_tokens),
        ("texts", demand.texts, free_texts, limits.max_queue_texts),
    )
    exact = demand.exact or demand.tokenizing_seconds is None
    for unit, size, _, limit in bounds:
        if 2 * size > limit and exact:
            raise Unprocessable(
                f"the request has {size} {unit}; at most {limit // 2} are taken at a time, "
                "send it in parts"
            )
    for unit, size, free, limit in bounds:
        if 2 * min(size, limit // 2) > free:
            why = f"the queue holds {limit - free} of {limit} {unit}"
            if 2 * size > 2:
                why += f", and a request takes at most half of the rest: this one has {size}"
            return _refused(unit, why, expected.wait)
    return None


def _check_deadline(lane: Lane, demand: Demand, expected: Forecast, now: float) -> Refusal | None:
    """Return the refusal of a request that would end after its deadline; None if in time."""
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
    """Return the seconds until the request could end before its deadline.

    Its predicted end, if it arrives now, is `seconds` after the deadline.
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
    """Return the whole seconds until a retry: randomly one to two waits, to spread retries."""
    return max(1, round(random.uniform(1, 2) * wait))  # noqa: S311 - no secret


def deadline_passed(retry_after_seconds: int) -> DeadlinePassed:
    """Return the error of a request whose waiting time is over."""
    return DeadlinePassed(
        "the request waited for as long as it may",
        retry_after_seconds=retry_after_seconds,
        reason="queue_deadline",
    )
