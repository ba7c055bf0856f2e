"""Clients in this event loop, for tests that stop or kill what they ask."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from testing.client import HANG_SECONDS, Connection, Lost, Reply

RETRY_SECONDS = 0.02


@dataclass
class Clients:
    """A closed loop of clients, each of which connects again whenever its connection ends.

    A connection that says it closes is closed, and the next may be refused: that loses nothing.
    """

    port: int
    requests: Sequence[bytes]
    """Sent in turn."""
    judge: Callable[[int, Reply], str]
    """The outcome of a reply to the request of this number."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """The judge's, `lost` (sent and not answered) and `refused` (not connected)."""
    killed: float = math.inf
    """`time.monotonic()` at which a process of the service was killed."""
    late: int = 0
    """Requests lost over a connection that was made after that."""
    pause_seconds: float = 0.0
    """Between a reply and a client's next request: who only has to go on leaves the processor to
    what is being started."""
    stopping: bool = False

    @contextlib.asynccontextmanager
    async def running(self, count: int) -> AsyncIterator[None]:
        """So many clients meanwhile; each has its last reply at the end."""
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(self._client(number))
            yield
            self.stopping = True

    async def until(self, outcome: str, count: int) -> None:
        """Wait for so many of an outcome.

        Raises:
            TimeoutError: they do not come.

        """
        async with asyncio.timeout(HANG_SECONDS):
            while self.outcomes[outcome] < count:
                await asyncio.sleep(0.01)

    async def _client(self, number: int) -> None:
        while not self.stopping:
            try:
                connection = await Connection.to(self.port)
            except OSError:
                self.outcomes["refused"] += 1
                await asyncio.sleep(RETRY_SECONDS)
            else:
                async with connection:
                    await self._use(connection, number)

    async def _use(self, connection: Connection, number: int) -> None:
        closes, made = False, time.monotonic()
        while not (closes or self.stopping):
            number = (number + 1) % len(self.requests)
            try:
                reply = await connection.ask(self.requests[number])
            except Lost:
                self.outcomes["lost"] += 1
                self.late += made > self.killed
                return
            closes = reply.closes
            self.outcomes[self.judge(number, reply)] += 1
            if self.pause_seconds:
                await asyncio.sleep(self.pause_seconds)
