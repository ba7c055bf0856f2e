"""Admission: bounds on the tokens and texts that wait in a lane, and on their waiting time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from service.errors import DeadlinePassed, Overloaded, Unprocessable
from service.scheduler.lanes import Lane

RefusalReason = Literal["tokens", "texts", "wait", "deadline"]
"""The bound for which a request was not admitted, or given up before any of it was computed."""


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
    """Tokens waiting in a lane."""
    max_queue_texts: int = 2**14
    """Texts waiting in a lane."""
    queue_seconds: float = math.inf
    """Waiting time until the first batch of a request."""
    batch_seconds: float = math.inf
    """Computing time of a batch; one that takes longer hangs."""


def predicted_wait(
    lane: Lane, lanes: Iterable[Lane], limits: BatchLimits, concurrency: int
) -> float:
    """Seconds until all that waits in a lane has begun, at the pace of its last batches.

    Where something waits, a batch is running that has to end before. While other lanes wait too,
    it gets its share of the engine, and at worst goes last.
    """
    if not lane.queued_tokens:
        return 0.0
    most = limits.max_batch_tokens
    others = [other for other in lanes if other is not lane and other.queued_tokens]
    work = lane.pace.predict(lane.queued_tokens, most)
    everything = work + sum(other.pace.predict(other.queued_tokens, most) for other in others)
    share = lane.share / (lane.share + sum(other.share for other in others))
    return (min(work / share, everything) + lane.pace.seconds) / concurrency


def check_admission(
    lane: Lane, texts: int, tokens: int, wait: float, patience: float, limits: BatchLimits
) -> Refusal | None:
    """The refusal of a request that cannot wait in a lane now; None if it can.

    Args:
        lane: where it would wait.
        texts: of the request.
        tokens: of the request.
        wait: seconds that are predicted for it.
        patience: seconds that it may wait.
        limits: the bounds.

    Raises:
        Unprocessable: the request alone exceeds a bound.

    """
    for size, limit, unit in (
        (tokens, limits.max_queue_tokens, "tokens"),
        (texts, limits.max_queue_texts, "texts"),
    ):
        if size > limit:
            raise Unprocessable(
                f"the request has {size} {unit}; at most {limit} fit into the queue, "
                "send it in parts"
            )
    retry = max(1, math.ceil(wait))
    if patience <= 0:
        return Refusal("deadline", deadline_passed(retry))
    if lane.queued_tokens + tokens > limits.max_queue_tokens:
        held = f"the queue holds {lane.queued_tokens} of {limits.max_queue_tokens} tokens"
        return Refusal("tokens", Overloaded(held, retry_after_seconds=retry))
    if lane.queued_texts + texts > limits.max_queue_texts:
        held = f"the queue holds {lane.queued_texts} of {limits.max_queue_texts} texts"
        return Refusal("texts", Overloaded(held, retry_after_seconds=retry))
    if wait > patience:
        why = f"a wait of {wait:.1f} s is predicted, and {patience:.1f} s are allowed"
        return Refusal("wait", Overloaded(why, retry_after_seconds=retry))
    return None


def deadline_passed(retry_after_seconds: int) -> DeadlinePassed:
    """The error of a request whose waiting time is over."""
    return DeadlinePassed(
        "the request waited for as long as it may", retry_after_seconds=retry_after_seconds
    )
