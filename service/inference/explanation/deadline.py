"""Time of an explanation: its end, and the work that is cancelled there."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Sequence

WRITING_SHARE, MOST_WRITING_SECONDS = 0.1, 1.0
"""Fraction of a request's time that is reserved for writing the reply, and its maximum."""
WRITTEN_BYTES = 50_000_000
"""Bytes of a reply that are written per second: time added to the reserve above."""


def writing_seconds(seconds: float, reply_bytes: int) -> float:
    """Return the part of a request's time that is reserved for writing its reply.

    Args:
        seconds: time until the request's deadline.
        reply_bytes: predicted bytes of the reply.

    """
    return min(WRITING_SHARE * seconds, MOST_WRITING_SECONDS) + reply_bytes / WRITTEN_BYTES


async def run_until(due: float, works: Sequence[Coroutine[None, None, None]]) -> None:
    """Run coroutines concurrently, and cancel the unfinished ones when the time is up.

    Args:
        due: `time.monotonic()` of the end; infinite for none.
        works: the coroutines; the first error of one is raised.

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
