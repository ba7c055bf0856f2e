"""A limit on the bytes that all bodies, or all replies, in flight hold in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from service.errors import Overloaded
from service.system import resources

RELEASE_SECONDS, RELEASE_BYTES = 5.0, 2**24
"""How often freed memory goes back to the system, if bodies and replies have held so much since."""


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
        self._what = what

    def take(self, size: int, own: int = 0) -> None:
        """Take `size` bytes for a holder of `own` bytes; a holder that is alone always may.

        Raises:
            Overloaded: the other holders leave too little.

        """
        if self.held > own and self.held + size > self.limit:
            raise Overloaded(
                f"{self._what} in flight hold {self.held} of {self.limit} bytes",
                retry_after_seconds=1,
                reason=f"bytes_of_{self._what}",
            )
        self.held += size

    def give_back(self, size: int) -> None:
        """Return bytes that were taken."""
        self.held -= size
        self.returned += size

    @contextlib.contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Hold `size` bytes for as long as the block runs.

        Raises:
            Overloaded: the other holders leave too little.

        """
        self.take(size)
        try:
            yield
        finally:
            self.give_back(size)


@contextlib.asynccontextmanager
async def releasing(*budgets: ByteBudget) -> AsyncIterator[None]:
    """Let the memory of large bodies and replies go back to the system soon after they are done."""

    async def release() -> None:
        released = 0
        while True:
            await asyncio.sleep(RELEASE_SECONDS)
            returned = sum(budget.returned for budget in budgets)
            if returned - released >= RELEASE_BYTES:
                released = returned
                await asyncio.to_thread(resources.release_memory)

    task = asyncio.create_task(release())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
