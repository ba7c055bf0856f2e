"""Around every request, in pure ASGI: a bounded body, an id, timing, and clients that leave."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import BodyTooLarge, ServiceError
from service.metrics import Metrics
from service.problems import problem_response

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class ClientLeft(Exception):
    """The client closed the connection before its body was complete."""


class RequestMiddleware:
    """Reads the whole body, runs the application, and cancels it when the client leaves."""

    def __init__(self, app: ASGIApp, metrics: Metrics, max_body_bytes: int) -> None:
        self.app = app
        self.metrics = metrics
        self.max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        app, body = self.app, b""
        try:
            body = await self._read(scope, receive)
        except ClientLeft:
            self.metrics.disconnects.inc()
            return
        except BodyTooLarge as error:
            app = problem_response(error, request_id)
        started = time.perf_counter()
        status, complete = 0, False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                elapsed = round(1000 * (time.perf_counter() - started))
                message["headers"] = [
                    *message.get("headers", []),
                    (b"x-request-id", request_id.encode("ascii")),
                    (b"x-total-time", str(elapsed).encode("ascii")),
                ]
            else:
                complete = not message.get("more_body", False)
            await send(message)

        answer = app(scope, _Replay(body), send_with_headers)
        try:
            # a server says "disconnect" of a complete reply as well
            if not await _until_disconnect(answer, receive, lambda: complete):
                self.metrics.disconnects.inc()
                return
        except Exception:
            if not status:
                failure = ServiceError("something went wrong inside the service")
                await problem_response(failure, request_id)(scope, receive, send_with_headers)
            self._count(scope, status, started)
            raise
        self._count(scope, status, started)

    def _count(self, scope: Scope, status: int, started: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self.metrics.requests.labels(route, str(status)).inc()
        self.metrics.request_seconds.labels(route).observe(time.perf_counter() - started)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        chunks, size = [], 0
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit():
                self._check(int(value[:20]))
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            chunk = message.get("body", b"")
            size += len(chunk)
            self._check(size)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def _check(self, size: int) -> None:
        if size > self.max_body_bytes:
            raise BodyTooLarge(f"the body has more than {self.max_body_bytes} bytes")


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


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return f"{random.getrandbits(128):032x}"
