"""A limit on the bytes that all bodies, or all requests and replies, in flight hold in memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence

from service.errors import Overloaded, RequestTooLarge

_log = logging.getLogger("headscope")

RELEASE_SECONDS, RELEASE_BYTES = 5.0, 2**24
"""Minimum seconds and minimum freed bytes between two returns of memory to the system."""
SMALL_PART, BEYOND_PART = 2**13, 16
"""A share is small up to the limit divided by the first, 64 KiB by default: where large ones fill
the budget, small ones may exceed the limit by the limit divided by the second."""
WEIGHT = 0.2
"""Weight of the last holder in the mean time of holding."""


class ByteBudget:
    """Bytes in flight over all requests, and the most that there may be.

    A reply holds its share from before it is computed until its last byte is written; a body from
    its first byte until its request is answered.
    """

    def __init__(self, limit: int, what: str = "replies") -> None:
        self.limit = limit
        self.held = 0
        self.returned = 0
        """Bytes that were given back, ever."""
        self.requests = 0
        """Number of requests with a reservation."""
        self._what = what
        self._seconds = 1.0
        """Mean time for which a large share is held."""

    def take(self, size: int, own: int = 0) -> None:
        """Take `size` bytes for a holder of `own` bytes; a holder that is alone always may.

        Raises:
            Overloaded: the other holders leave too little.

        """
        if self.held + size > self.limit:
            self.check(size, own)
        self.held += size

    def check(self, size: int, own: int) -> None:
        """Raise unless a holder may take bytes beyond the limit."""
        small = own + size <= self.limit // SMALL_PART
        most = self.limit + (self.limit // BEYOND_PART if small else 0)
        alone = self.held <= own or self.requests == 1
        if self.held + size > most and not alone:
            excess = self.held + size - self.limit
            raise Overloaded(
                f"{self._what} in flight hold {self.held} of {self.limit} bytes, and this one "
                f"takes {size} more",
                retry_after_seconds=max(1, round(self._seconds * min(1.0, excess / self.held))),
                reason=f"bytes_of_{self._what}",
            )

    def give_back(self, size: int, seconds: float = 0.0) -> None:
        """Return taken bytes, which were held for `seconds`."""
        self.held -= size
        self.returned += size
        if seconds and size > self.limit // SMALL_PART:
            self._seconds += WEIGHT * (seconds - self._seconds)


class Reservation:
    """Bytes that one request holds, from before it is parsed until it is answered.

    Upper bounds are taken before the work, and what turned out to be too much is given back.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self.size = 0
        self._budget = budget
        self._began = 0.0
        self._callbacks: list[Callable[[], None]] = []

    def grow(self, size: int, *, bounded: bool = False) -> None:
        """Take more bytes; `bounded` ones keep a limit of their own, and exceed this one alone.

        Raises:
            RequestTooLarge: the request alone exceeds the limit.
            Overloaded: the other requests leave too little.

        """
        budget = self._budget
        if not bounded and self.size + size > budget.limit:
            raise RequestTooLarge(
                f"to answer the request may take {self.size + size} bytes of memory, more than "
                f"{budget.limit} (--max-bytes-in-flight): send it in parts"
            )
        if not self._began:
            self._began = time.monotonic()
            budget.requests += 1
        if budget.held + size > budget.limit:
            budget.check(size, self.size)
        budget.held += size
        self.size += size

    def shrink(self, size: int) -> None:
        """Give bytes back that are not needed."""
        self.size -= size
        self._budget.give_back(size)

    def on_release(self, callback: Callable[[], None]) -> None:
        """Have a function called once the request is answered."""
        self._callbacks.append(callback)

    def release(self) -> None:
        """Give everything back."""
        if self._began:
            self._budget.requests -= 1
            self._budget.give_back(self.size, time.monotonic() - self._began)
            self.size, self._began = 0, 0.0
        while self._callbacks:
            self._callbacks.pop()()


@contextlib.asynccontextmanager
async def releasing(
    budgets: Sequence[ByteBudget], release_memory: Callable[[], None]
) -> AsyncIterator[None]:
    """Return the memory of the start, and of large bodies and replies, to the system soon after.

    `release_memory` is called in a thread, at most every `RELEASE_SECONDS`.
    """

    async def release() -> None:
        released = -RELEASE_BYTES  # the start leaves memory behind, too
        while True:
            await asyncio.sleep(RELEASE_SECONDS)
            returned = sum(budget.returned for budget in budgets)
            if returned - released >= RELEASE_BYTES:
                released = returned
                try:
                    await asyncio.to_thread(release_memory)
                except Exception:  # the next release may succeed
                    _log.exception("memory was not returned to the system")

    task = asyncio.create_task(release())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
