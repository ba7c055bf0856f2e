"""Closed loop of clients in this event loop, also of servers that are stopped or killed."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

from testing.client import HANG_SECONDS, Connection, Lost, Reply

RETRY_SECONDS = 0.02
Judge = Callable[[Reply], str]
"""Function from a reply to its outcome."""


@dataclass
class Clients:
    """Closed loop of clients, each of which reconnects whenever its connection ends.

    After a reply with `connection: close` the next connection may be refused: no request is lost.
    """

    port: int
    requests: Iterator[tuple[bytes, Judge]]
    """Requests, sent in turn by whichever client is free; clients end with the last."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Counts of the judges' outcomes, `lost` (sent, not answered) and `refused` (not connected)."""
    killed: float = math.inf
    """`time.monotonic()` at which a process of the service was killed."""
    late: int = 0
    """Number of requests lost over a connection that was opened after `killed`."""
    pause_seconds: float = 0.0
    """Seconds between a reply and the client's next request, to leave processor time to a process
    that is starting."""
    surplus: int = 0
    """Number of unrequested bytes received after replies."""
    stopping: bool = False

    @contextlib.asynccontextmanager
    async def running(self, count: int) -> AsyncIterator[None]:
        """Run `count` clients during the block; at the end each waits for its last reply."""
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self._client())
            yield
            self.stopping = True

    async def finish(self, count: int) -> None:
        """Run `count` clients until all requests are answered or lost."""
        await asyncio.gather(*(self._client() for _ in range(count)))

    async def until(self, outcome: str, count: int) -> None:
        """Wait until an outcome has occurred `count` times.

        Raises:
            TimeoutError: the outcomes do not occur within `HANG_SECONDS`.

        """
        async with asyncio.timeout(HANG_SECONDS):
            while self.outcomes[outcome] < count:
                await asyncio.sleep(0.01)

    async def _client(self) -> None:
        while not self.stopping:
            try:
                connection = await Connection.to(self.port)
            except OSError:
                self.outcomes["refused"] += 1
                await asyncio.sleep(RETRY_SECONDS)
            else:
                async with connection:
                    goes_on = await self._use(connection)
                self.surplus += connection.surplus
                if not goes_on:
                    return

    async def _use(self, connection: Connection) -> bool:
        """Use a connection until it ends; return whether there are further requests."""
        made = time.monotonic()
        while not self.stopping:
            content, judge = next(self.requests, (b"", None))
            if judge is None:
                return False
            try:
                reply = await connection.ask(content)
            except Lost:
                self.outcomes["lost"] += 1
                self.late += made > self.killed
                return True
            self.outcomes[judge(reply)] += 1
            if self.pause_seconds:
                await asyncio.sleep(self.pause_seconds)
            if reply.closes:
                return True
        return False
