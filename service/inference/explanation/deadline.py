"""Deadline of an explanation: its work, the refusal of too much work, and the work to admit.

The unit of work is the time of encoding one token, the unit in which the scheduler measures
throughput.
"""

from __future__ import annotations

import asyncio
import bisect
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

from service.errors import Unprocessable
from service.scheduler.scheduler import Scheduler

WRITING_SHARE, MOST_WRITING_SECONDS = 0.1, 1.0
"""Fraction of a request's time that is reserved for writing the reply, and its maximum."""
WRITTEN_BYTES = 50_000_000
"""Bytes of a reply that are written per second: time added to the reserve above."""


def writing_seconds(seconds: float, reply_bytes: int) -> float:
    """Return the part of the `seconds` until a request's deadline that its reply is written in."""
    return min(WRITING_SHARE * seconds, MOST_WRITING_SECONDS) + reply_bytes / WRITTEN_BYTES


async def run_until(due: float, works: Sequence[Coroutine[None, None, None]]) -> None:
    """Run coroutines concurrently, and cancel those unfinished at `due`, by `time.monotonic()`.

    The first error of one is raised.
    """
    running = [asyncio.create_task(work) for work in works]
    seconds = None if due == math.inf else max(0.0, due - time.monotonic())
    try:
        done, _ = await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


USEFUL_SHARE = 0.1
"""Fraction of the occlusion passes that an idle service must be able to compute in time."""
ADMITTED_SHARE = 0.5
"""Fraction of an idle service's work within the deadline that admission requires."""


@dataclass(frozen=True)
class Work:
    """The work of a request."""

    tokens: int
    """Tokens of the whole request."""
    least: int
    """Tokens of the smallest useful part: the vectors, a tenth of the occlusion passes, and the
    decomposition of the first pair."""


def check_least(alone: float, seconds: float, advice: Callable[[], str]) -> None:
    """Raise if the smallest useful part takes an idle service longer than until the deadline.

    `advice` returns how to reduce the work, for the message.
    """
    if alone > seconds:
        raise Unprocessable(
            f"the smallest useful part of this explanation takes about {alone:.1f} s on an idle "
            f"service, and there are {seconds:.1f} s to compute it (--request-timeout-seconds, or "
            f"less by the header x-request-timeout-ms): {advice()}"
        )


def needed_tokens(scheduler: Scheduler, work: Work, seconds: float) -> int:
    """Return the tokens that must fit before the deadline beside other requests.

    A request is refused if less than half of its answer would fit. If even an idle service would
    truncate the answer, half of the idle service's work is enough: the request is never refused
    for good.
    """
    alone = bisect.bisect_right(
        range(1, work.tokens + 1),
        seconds,
        key=lambda tokens: scheduler.seconds_alone("attention", tokens),
    )
    return max(work.least, math.ceil(ADMITTED_SHARE * alone))
