"""Who may wait: bounds on what a lane holds, and on how long it would take to get to it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from service.errors import DeadlinePassed, Overloaded, Unprocessable
from service.scheduler.lanes import Lane

Refusal = Literal["tokens", "texts", "wait", "deadline"]
"""Why a request was not taken, or given up before anything of it was computed."""


@dataclass(frozen=True)
class BatchLimits:
    """Bounds on batches and on what waits for them."""

    max_batch_tokens: int
    """Of a batch; a longer text goes alone."""
    max_queue_tokens: int
    """Waiting in a lane."""
    max_queue_texts: int = 2**14
    """Waiting in a lane."""
    queue_seconds: float = math.inf
    """Until the first batch of a request."""
    batch_seconds: float = math.inf
    """A batch that takes longer hangs."""


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


def refusal(
    lane: Lane, texts: int, tokens: int, wait: float, patience: float, limits: BatchLimits
) -> tuple[Refusal, Overloaded] | None:
    """Why a request cannot wait in a lane now; None if it can.

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
        return "deadline", passed(retry)
    if lane.queued_tokens + tokens > limits.max_queue_tokens:
        held = f"the queue holds {lane.queued_tokens} of {limits.max_queue_tokens} tokens"
        return "tokens", Overloaded(held, retry_after_seconds=retry)
    if lane.queued_texts + texts > limits.max_queue_texts:
        held = f"the queue holds {lane.queued_texts} of {limits.max_queue_texts} texts"
        return "texts", Overloaded(held, retry_after_seconds=retry)
    if wait > patience:
        why = f"a wait of {wait:.1f} s is predicted, and {patience:.1f} s are allowed"
        return "wait", Overloaded(why, retry_after_seconds=retry)
    return None


def passed(retry_after_seconds: int) -> DeadlinePassed:
    """The time is over, and nothing of the request was computed."""
    return DeadlinePassed(
        "the request waited for as long as it may", retry_after_seconds=retry_after_seconds
    )
