"""HTTP/1.1 on one connection: uvicorn's protocol, held against clients that are wrong or slow.

    head      within the client's time, from its first byte on, or from the connection's start: 408
    body      bounded by `body.py`; the rest of one that is refused is read and dropped
    reply     a client that does not take TAKEN_BYTES of it in its time is cut off

What is wrong with a request is its reply, in its turn, and ends the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import struct
import sys
from collections.abc import Callable
from socket import SO_LINGER, SOL_SOCKET
from termios import TIOCOUTQ
from typing import Any, cast

import httptools
from starlette.types import ASGIApp
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from service.errors import HeaderFieldsTooLarge, InvalidRequest, RequestTimeout, ServiceError
from service.http.exchange import ErrorResponse, new_request_id
from service.http.reader import StrictReader
from service.http.until_close import until_close

PIPELINED = 64
"""Requests that may wait on one connection for the reply to an earlier one."""
TAKEN_BYTES = 2**20
"""What a client must take of a reply in its time."""
LINGER_SECONDS = 5.0
"""How long a client that is refused may go on sending before it has read why."""


class HttpProtocol(StrictReader):
    """One connection; see the module."""

    def __init__(
        self,
        *args: Any,
        client_timeout_seconds: float,
        error_response: ErrorResponse,
        count_refusal: Callable[[str, ServiceError], None],
        **kwargs: Any,
    ) -> None:
        """Speak to one client.

        Args:
            *args: uvicorn's own.
            client_timeout_seconds: what a client has for each step.
            error_response: the form of an error.
            count_refusal: hears the path and error of each request that is refused here.
            **kwargs: uvicorn's own.

        """
        super().__init__(*args, **kwargs)
        self._error_response = error_response
        self._count_refusal = count_refusal
        self.access_log = False  # uvicorn's line would hold the target as the caller wrote it
        self._timeout = client_timeout_seconds
        self._answering = 0
        """Requests whose reply is not complete."""
        self._final_error: ServiceError | None = None
        """The error that ends the connection, once earlier requests are answered."""
        self._closing = False
        self._began = self.loop.time()
        """When the request that is being read began."""
        self._head_deadline: float | None = None
        self._write_deadline: float | None = None
        self._last_untaken_bytes = 0
        """When that deadline was set."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; its first head is due."""
        self._connection = transport
        super().connection_made(_Transport(transport, self))  # type: ignore[arg-type]
        self._head_deadline = self.loop.time() + self._timeout
        self._timer = self.loop.call_at(self._head_deadline, self._watch)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: whoever works for it is told."""
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes of requests."""
        self._unset_keepalive_if_required()
        if self._final_error or self._closing:
            return
        if self._in_head and not self._uncounted_bytes:
            self._began = self.loop.time()
        if self._in_head and self._head_deadline is None:
            self._head_deadline = self.loop.time() + self._timeout
        try:
            self.feed(data)
        except HeaderFieldsTooLarge as error:
            self._refuse(error)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if not isinstance(cause, ServiceError):
                cause = InvalidRequest("this is not a request of HTTP/1.1")
            self._refuse(cause)

    def on_message_begin(self) -> None:
        """The first byte of a request: the rest of its head is due."""
        super().on_message_begin()
        self._began = self.loop.time()
        if self._head_deadline is None:
            self._head_deadline = self._began + self._timeout

    def on_headers_complete(self) -> None:
        """A whole head: its request starts, or waits for its turn.

        Raises:
            InvalidRequest: it can be read in more than one way, or in none.
            HeaderFieldsTooLarge: it is too long.

        """
        if len(self.pipeline) >= PIPELINED:
            raise InvalidRequest(f"more than {PIPELINED} requests wait on this connection")
        super().on_headers_complete()
        if not self._upgrading:
            self._answering += 1
            self._head_deadline = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.scope["http_version"] == "1.0":
            closing = until_close(cast(ASGIApp, app), cycle, self._cut_off)
            app = cast(ASGI3Application, closing)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """The last byte of a reply: on to what comes next on this connection, if anything may."""
        self._answering -= 1
        super().on_response_complete()
        if self._answering:
            return
        if self._final_error:
            self._write_error(self._final_error)
        elif not self._in_head:
            self.close()

    def _refuse(self, error: ServiceError) -> None:
        """Read no more, and answer the request that is being read with an error, in its turn."""
        self._final_error = error
        self._head_deadline = None
        if not self._in_head:
            self._answering -= 1
            if self.pipeline:
                self.pipeline.popleft()
            elif self.cycle.response_started:
                self._cut_off()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not self._answering:
            self._write_error(error)

    def _write_error(self, error: ServiceError) -> None:
        if self.is_closing():
            return
        request_id = new_request_id()
        path = str(self.url.partition(b"?")[0], "latin-1")
        response = self._error_response(path, error, request_id)
        milliseconds = round(1000 * (self.loop.time() - self._began))
        headers = [
            *self.server_state.default_headers,
            *response.raw_headers,
            (b"x-request-id", request_id.encode("ascii")),
            (b"x-total-time", str(milliseconds).encode("ascii")),
            (b"connection", b"close"),
        ]
        lines = [name + b": " + value + b"\r\n" for name, value in dict(headers).items()]
        head = b"".join([STATUS_LINE[response.status_code], *lines, b"\r\n"])
        self._connection.write(head + bytes(response.body))
        self._count_refusal(path, error)
        self.close()

    def is_closing(self) -> bool:
        """Whether nothing more is written."""
        return self._closing or self._connection.is_closing()

    def close(self) -> None:
        """End the connection once all is written, however slow the client is.

        A client that still sends would see a reset instead of its reply if the socket were closed:
        its bytes are dropped until it has seen the end, for as long as LINGER_SECONDS.
        """
        if self.is_closing():
            return
        if self._in_head and not self._final_error:
            self._end(self._timeout)
            self._connection.close()
            return
        self._end(min(LINGER_SECONDS, self._timeout))
        self.flow.resume_reading()
        try:
            self._connection.write_eof()
        except (OSError, RuntimeError):  # it has left just now
            self._cut_off()

    def eof_received(self) -> None:
        """The client sends no more: it is taken to have left."""
        self._end(self._timeout)
        self._connection.close()

    def _end(self, seconds: float) -> None:
        self._closing = True
        self._expect_taken(seconds)
        self._schedule()

    def _expect_taken(self, seconds: float) -> None:
        if self._write_deadline is None:
            self._write_deadline = self.loop.time() + seconds
            self._last_untaken_bytes = self._untaken_bytes()

    def _untaken_bytes(self) -> int:
        """What was written and the client has not taken, here and in the system."""
        here = self._connection.get_write_buffer_size()
        with contextlib.suppress(OSError):
            queued = fcntl.ioctl(self._connection.get_extra_info("socket"), TIOCOUTQ, bytes(4))
            return here + int.from_bytes(queued, sys.byteorder)
        return here

    def _cut_off(self) -> None:
        """Drop what was not taken, also what the system still holds."""
        now = struct.pack("ii", 1, 0)
        with contextlib.suppress(OSError):
            self._connection.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, now)
        self._connection.abort()

    def pause_writing(self) -> None:
        """More is waiting for the client than the transport likes to hold."""
        super().pause_writing()
        self._expect_taken(self._timeout)

    def resume_writing(self) -> None:
        """The client has taken nearly all of it."""
        super().resume_writing()
        if not self._closing:
            self._write_deadline = None

    def _watch(self) -> None:
        """Look whether the client is late."""
        now = self.loop.time()
        if self._write_deadline is not None and self._write_deadline <= now:
            left = self._untaken_bytes()
            if self._last_untaken_bytes - left < TAKEN_BYTES:
                self._cut_off()
                return
            self._last_untaken_bytes, self._write_deadline = left, now + self._timeout
        if self._head_deadline is not None and self._head_deadline <= now:
            self._head_is_late(now)
        self._schedule()

    def _schedule(self) -> None:
        """Look again at the next deadline; or when one that is set from now on is not over yet."""
        soonest = self.loop.time() + self._timeout
        deadlines = (self._write_deadline, self._head_deadline, soonest)
        self._timer.cancel()
        self._timer = self.loop.call_at(min(d for d in deadlines if d is not None), self._watch)

    def _head_is_late(self, now: float) -> None:
        if self.flow.read_paused:
            self._head_deadline = now + self._timeout
        elif self._uncounted_bytes:
            seconds = f"{self._timeout:g} seconds"
            self._refuse(RequestTimeout(f"the request's head was not complete within {seconds}"))
        else:
            self._head_deadline = None
            self.close()


class _Transport:
    """The transport as uvicorn sees it: closing is its protocol's."""

    def __init__(self, transport: asyncio.Transport, protocol: HttpProtocol) -> None:
        self.write = transport.write
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.close = protocol.close
        self.is_closing = protocol.is_closing
