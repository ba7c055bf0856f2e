"""Admission: bounds on the tokens and texts that wait in a lane, and on their time."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from service.errors import DeadlinePassed, Overloaded, Unprocessable
from service.scheduler.call import Call
from service.scheduler.lanes import Lane

RefusalReason = Literal["tokens", "texts", "wait", "deadline"]
"""Bound for which a request was refused, or cancelled before any of its texts was computed."""


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


class Demand(NamedTuple):
    """Texts and tokens of a request for admission."""

    texts: int
    tokens: int
    tokenizing_seconds: float = 0.0
    """Seconds until the texts are tokenised; 0 once they are."""
    exact: bool = True
    """Whether `tokens` is exact, not an estimate by the characters of texts."""
    admitted: bool = False
    """Whether the request was admitted by its estimate. Only its deadline is checked again, at the
    pace of the batches since then."""


NOTHING = Demand(0, 0)
"""Demand of a text that is tokenised at once, and is admitted with its exact tokens."""


class Forecast(NamedTuple):
    """Predicted start and end of a request, in seconds from now."""

    wait: float
    """Seconds until the first text begins."""
    total: float
    """Seconds until the last text is computed."""
    ahead: int = 0
    """Tokens to compute after the last text, pending tokens of other requests included."""
    rest: float = 0.0
    """Seconds from the last text until the tokens of `ahead` are computed."""


class Admission:
    """Forecasts and admission of the requests of an engine's two lanes."""

    def __init__(self, lanes: Collection[Lane], limits: BatchLimits, threads: int) -> None:
        self._lanes = lanes
        self._limits = limits
        self._threads = threads
        """Number of threads that compute."""

    def forecast(self, lane: Lane, call: Call, demand: Demand, *, idle: bool) -> Forecast:
        """Predict start and end of a request that arrives now, at the pace of the last batches.

        `idle` is whether a thread computes nothing.
        """
        most, tokens, queue = self._limits.max_batch_tokens, demand.tokens, lane.texts
        last_batch = min(tokens, most)
        before = before_last = queue.tokens_before(call.client) if queue.texts else 0
        if tokens > most:
            before_last = queue.tokens_before(call.client, tokens - last_batch)
        if lane.estimates.open and not demand.admitted:  # which has its place before the others
            before_last += lane.estimates.before(call.client, tokens)
        share, elsewhere = 1.0, 0.0
        for other in self._lanes:
            if other is not lane and (other.texts.tokens or other.map_tokens):
                share = lane.share / (lane.share + other.share)
                elsewhere = other.seconds(other.texts.tokens, most)
        running = 0.0 if idle else lane.batch_seconds

        def until(tokens: int) -> float:
            """Return the seconds until all maps, and then some tokens of texts, have begun."""
            work = lane.seconds(tokens, most) if tokens or lane.map_tokens else 0.0
            return (min(work / share, work + elsewhere) + running) / self._threads

        wait = until(before)
        total = wait if before_last == before else until(before_last)
        total += lane.text_pace.predict(last_batch, most)
        if not call.pending or not call.pending.needed:
            return Forecast(wait, total)
        ahead = call.pending.needed
        ahead += lane.pending.before(call.client, ahead)
        rest = lane.text_pace.predict(ahead, most) / share / self._threads
        return Forecast(wait, total, ahead, rest)

    def refusal(
        self, lane: Lane, call: Call, demand: Demand, expected: Forecast
    ) -> Overloaded | None:
        """Return the error of a request that cannot be queued now; None if it can.

        Raises:
            Unprocessable: the request alone exceeds the queue.

        """
        now, limits, pending = time.monotonic(), self._limits, call.pending
        left = call.finish_by - now
        if left <= 0:
            return deadline_passed(expected.wait)
        if not demand.admitted:
            if refusal := self._full(lane, demand, expected):
                return refusal
            patience = min(left, limits.queue_seconds)
            allowed = lane.congestion.most_seconds(expected.wait, patience, now)
            if expected.wait > allowed:
                why = f"a wait of {expected.wait:.1f} s is predicted"
                return _refused("wait", f"{why}, and {allowed:.1f} s are allowed", expected.wait)
        left -= pending.writing_seconds if pending else 0.0
        total = expected.total * lane.margin.factor + expected.rest + demand.tokenizing_seconds
        if total <= left:
            return None
        lane.margin.relax()
        needed = pending.needed if pending else 0
        if not lane.queued_tokens and expected.ahead == needed:
            lane.relax()
        late = total - left
        if expected.rest:
            rate = expected.ahead / expected.rest
            most = expected.ahead - late * rate
            late = lane.pending.seconds_until_room(call.client, needed, most, rate, now)
        why = f"it would take about {total:.1f} s, and {left:.1f} s are left of its time"
        return _refused("deadline", why, late)

    def _full(self, lane: Lane, demand: Demand, expected: Forecast) -> Overloaded | None:
        """Return the error of a request that exceeds half of the queue's room."""
        limits = self._limits
        free_tokens = limits.max_queue_tokens - lane.texts.tokens - lane.map_tokens
        free_texts = limits.max_queue_texts - lane.texts.texts - len(lane.maps)
        if lane.estimates.open:
            free_tokens -= lane.estimates.tokens
        if 2 * demand.tokens <= free_tokens and 2 * demand.texts <= free_texts:
            return None
        bounds: tuple[tuple[RefusalReason, int, int, int], ...] = (
            ("tokens", demand.tokens, free_tokens, limits.max_queue_tokens),
            ("texts", demand.texts, free_texts, limits.max_queue_texts),
        )
        for unit, size, _, limit in bounds:
            if 2 * size > limit and demand.exact:
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


def _refused(reason: RefusalReason, why: str, seconds: float) -> Overloaded:
    return Overloaded(why, retry_after_seconds=retry_after(seconds), reason=f"queue_{reason}")


def reason_of(refusal: Overloaded) -> RefusalReason:
    """Return the bound for which a request was refused."""
    return cast(RefusalReason, refusal.reason.removeprefix("queue_"))


def retry_after(wait: float) -> int:
    """Return the whole seconds until a retry: randomly one to two waits, to spread retries."""
    return max(1, round(random.uniform(1, 2) * wait))  # noqa: S311 - no secret


def deadline_passed(wait: float) -> DeadlinePassed:
    """Return the error of a request whose time is over; a new one would wait some seconds."""
    return DeadlinePassed(
        "the request waited for as long as it may",
        retry_after_seconds=retry_after(wait),
        reason="queue_deadline",
    )
