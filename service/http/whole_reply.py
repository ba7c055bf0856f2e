"""Replies that are written at once: a head and the whole body.

uvicorn searches each name and value of a head for characters that would end it, and writes the head
and the body apart, which takes a third of the time of a small request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle


class WholeReplySend:
    """ASGI `send` of a request that can also write a whole reply."""

    __slots__ = ("_cycle", "_transport")

    def __init__(self, cycle: RequestResponseCycle, transport: asyncio.Transport) -> None:
        self._cycle = cycle
        self._transport = transport

    async def __call__(self, message: Message) -> None:
        """Send a part of the reply by uvicorn."""
        await self._cycle.send(message)  # type: ignore[arg-type]

    def whole(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write a whole reply.

        Args:
            status: status code.
            headers: headers with names in lower case, which have the body's length.
            body: body of the reply.

        Returns:
            Whether the reply was written, or dropped because its client has left. False means that
            it has to be sent in parts: uvicorn drops the body of a reply to HEAD, ends a connection
            that is not kept, waits for a client that does not read, and rejects invalid headers.

        """
        cycle = self._cycle
        if cycle.disconnected:
            return True
        every = [*cycle.default_headers, *headers]
        kept = cycle.keep_alive and (b"connection", b"close") not in every
        sized = (b"content-length", b"%d" % len(body)) in headers
        if not (kept and sized) or cycle.flow.write_paused or cycle.scope["method"] == "HEAD":
            return False
        lines = [b"%b: %b\r\n" % header for header in every]
        head = b"".join((STATUS_LINE[status], *lines, b"\r\n"))
        line_ends = len(lines) + 2
        if cycle.response_started or not head.count(b"\r") == head.count(b"\n") == line_ends:
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        self._transport.write(head + body)
        cycle.on_response()
        return True


def at_once(app: ASGIApp, cycle: RequestResponseCycle, transport: asyncio.Transport) -> ASGIApp:
    """Return an application that can write whole replies; see `WholeReplySend`."""

    def answer(scope: Scope, receive: Receive, _: Send) -> Awaitable[None]:
        return app(scope, receive, WholeReplySend(cycle, transport))

    return answer
