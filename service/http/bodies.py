"""A request's body, read whole before anything else, and the client that leaves meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import BodyTooLarge, RequestTimeout, ServiceError
from service.http.problems import problem_response
from service.http.requests import Progress
from service.scheduler.budget import ByteBudget
from service.telemetry.metrics import Metrics


@dataclass(frozen=True)
class BodyLimits:
    """What bodies may take."""

    max_bytes: int
    """Of one."""
    max_bytes_in_flight: int
    """Of all together."""
    seconds: float
    """To send one."""


class ClientLeft(Exception):
    """The client closed the connection before its body was complete."""


class BodyMiddleware:
    """Reads the whole body, runs the application, and cancels it when the client leaves."""

    def __init__(self, app: ASGIApp, metrics: Metrics, limits: BodyLimits) -> None:
        self.app = app
        self.metrics = metrics
        self.limits = limits
        self.budget = ByteBudget(limits.max_bytes_in_flight, "bodies")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        progress: Progress = scope["state"]["progress"]
        body = _Body(self.limits, self.budget)
        try:
            content = await body.read(scope, receive)
            progress.received = time.perf_counter()
            answer = self.app(scope, _Replay(content), send)
            # a server says "disconnect" of a complete reply as well
            progress.left = not await _until_disconnect(answer, receive, lambda: progress.complete)
        except ClientLeft:
            progress.left = True
        except ServiceError as error:
            await problem_response(error, scope["state"]["request_id"])(scope, receive, send)
        finally:
            self.budget.give_back(body.size)
        if progress.left:
            self.metrics.disconnects.inc()


class _Body:
    """What has arrived of a body."""

    def __init__(self, limits: BodyLimits, budget: ByteBudget) -> None:
        self.size = 0
        self._limits = limits
        self._budget = budget

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """All of it.

        Raises:
            ClientLeft: nobody waits for an answer any more.
            BodyTooLarge: it has more bytes than one may have.
            Overloaded: bodies together have more.
            RequestTimeout: it takes too long.

        """
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit():
                self._check(int(value[:20]))
        try:
            async with asyncio.timeout(self._limits.seconds):
                return await self._read(receive)
        except TimeoutError:
            seconds = f"{self._limits.seconds:g} seconds"
            raise RequestTimeout(f"the body was not complete within {seconds}") from None

    async def _read(self, receive: Receive) -> bytes:
        chunks = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            chunk = message.get("body", b"")
            self._check(self.size + len(chunk))
            self._budget.take(len(chunk), self.size)
            self.size += len(chunk)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def _check(self, size: int) -> None:
        if size > self._limits.max_bytes:
            raise BodyTooLarge(f"the body has more than {self._limits.max_bytes} bytes")


class _Replay:
    """A `receive` that gives the body, then waits for ever: the watcher sees who leaves."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    async def __call__(self) -> Message:
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


async def _until_disconnect(
    answer: Awaitable[None], receive: Receive, complete: Callable[[], bool]
) -> bool:
    """Run the application; cancel it when the client leaves before its reply is complete.

    Returns:
        Whether the application ended by itself.

    """
    running = asyncio.current_task()
    assert running is not None  # noqa: S101 - a server runs each request in a task
    left = False

    async def watch() -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            pass
        if not complete():
            left = True
            running.cancel()

    watching = asyncio.create_task(watch())
    try:
        await answer
    except asyncio.CancelledError:
        if left and running.uncancel() == 0:
            return False
        raise
    finally:
        watching.cancel()
    return True
