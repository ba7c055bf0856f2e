"""Clients in this event loop, for tests that stop or kill the server."""

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
    """Closed loop of clients, each of which reconnects whenever its connection ends.

    After a reply with `connection: close` the next connection may be refused: no request is lost.
    """

    port: int
    requests: Sequence[bytes]
    """Requests, sent in turn."""
    judge: Callable[[int, Reply], str]
    """Function from a request's number and its reply to the outcome."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Counts of the judge's outcomes, `lost` (sent, not answered) and `refused` (not connected)."""
    killed: float = math.inf
    """`time.monotonic()` at which a process of the service was killed."""
    late: int = 0
    """Number of requests lost over a connection that was opened after `killed`."""
    pause_seconds: float = 0.0
    """Seconds between a reply and the client's next request, to leave processor time to a process
    that is starting."""
    stopping: bool = False

    @contextlib.asynccontextmanager
    async def running(self, count: int) -> AsyncIterator[None]:
        """Run `count` clients during the block; at the end each waits for its last reply."""
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(self._client(number))
            yield
            self.stopping = True

    async def until(self, outcome: str, count: int) -> None:
        """Wait until an outcome has occurred `count` times.

        Raises:
            TimeoutError: the outcomes do not occur within `HANG_SECONDS`.

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
