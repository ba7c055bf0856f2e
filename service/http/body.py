"""Reading of a request's whole body, within limits, before the request is parsed."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from starlette.types import Message, Receive, Scope

from service.errors import BodyTooLarge, RequestTimeout
from service.http.turns import TURN_BYTES, Turns
from service.system.budget import ByteBudget


@dataclass(frozen=True)
class BodyLimits:
    """Limits of the body of one request."""

    max_bytes: int
    seconds: float
    """Maximum time in which a client sends a body."""


class ClientLeft(Exception):
    """The client closed the connection before its body was complete."""


class RequestBody:
    """Body of one request, and its share of the byte budget."""

    def __init__(self, limits: BodyLimits, budget: ByteBudget) -> None:
        self.size = 0
        """Bytes taken from the budget; the caller of `read` gives them back."""
        self._limits = limits
        self._budget = budget

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """Read the whole body."""
        whole: bytes | None = scope.pop("whole_body", None)
        if whole is not None:  # `HttpProtocol` has received all of it
            self._take(len(whole))
            return whole
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit():
                self._check(int(value[:20]))
        try:
            async with asyncio.timeout(self._limits.seconds) as clock:
                return await self._read(scope, receive, clock)
        except TimeoutError:
            seconds = f"{self._limits.seconds:g} seconds"
            raise RequestTimeout(f"the body was not complete within {seconds}") from None

    async def _read(self, scope: Scope, receive: Receive, clock: asyncio.Timeout) -> bytes:
        chunks = []
        while True:
            if self.size >= TURN_BYTES:
                await _wait_for_turn(scope["app"].state.service.turns, clock)
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            chunk = message.get("body", b"")
            self._take(len(chunk))
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def _take(self, size: int) -> None:
        self._check(self.size + size)
        self._budget.take(size, self.size)
        self.size += size

    def _check(self, size: int) -> None:
        if size > self._limits.max_bytes:
            raise BodyTooLarge(f"the body has more than {self._limits.max_bytes} bytes")


async def _wait_for_turn(turns: Turns, clock: asyncio.Timeout) -> None:
    """Wait for a turn to read more; the wait does not count as the client's time."""
    now = asyncio.get_running_loop().time
    left = (clock.when() or math.inf) - now()
    clock.reschedule(None)
    await turns.take()
    clock.reschedule(now() + left)


class ReplayedBody:
    """ASGI `receive` that returns the body once, then waits forever."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    async def __call__(self) -> Message:
        """Return the body as one message; wait forever from the second call on."""
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}
