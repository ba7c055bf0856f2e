"""HTTP/1.1 on one connection: uvicorn's protocol with limits for invalid and slow clients.

    head      complete within the timeout, from its first byte or from the connection's start: 408
    body      bounded by `Bodies`; the rest of a rejected body is read and dropped
    reply     the connection is reset if the client takes less than TAKEN_BYTES within the timeout

An invalid request is answered with an error, after the replies to earlier requests; then the
connection ends. llhttp accepts the following, which is rejected here: transfer codings other than
chunked, HTTP versions other than 1.0 and 1.1, no Host or several, a target that is not a path, and
heads of any size. A host in the target replaces the Host header (RFC 9112, 3.2.2). Trailers are
dropped, since uvicorn would add them to the headers. An upgrade request is read as a plain request.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import re
import struct
import sys
from collections.abc import Callable
from socket import SO_LINGER, SOL_SOCKET
from termios import TIOCOUTQ
from types import SimpleNamespace
from typing import Any

import httptools
from starlette.responses import Response
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from service.errors import HeaderFieldsTooLarge, InvalidRequest, RequestTimeout, ServiceError
from service.exchange import new_request_id

HEAD_BYTES = 32 * 2**10
"""Maximum bytes of a request line and its headers, and of the framing between chunks of a body."""
HEADERS = 100
"""Maximum number of headers of a request."""
PIPELINED = 64
"""Maximum number of requests that wait on one connection for the reply to an earlier request."""
TAKEN_BYTES = 2**20
"""Minimum bytes of a reply that a client must take within each timeout."""
LINGER_SECONDS = 5.0
"""Maximum time for which a rejected client may send before it has read the error."""

_LARGE_HEAD = f"the request's head has more than {HEAD_BYTES} bytes"
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:%\[\]-]*")
_TARGET = re.compile(rb"/[^#]*|\*|https?://[^/?#@]+/[^#]*", re.IGNORECASE)


class HttpProtocol(HttpToolsProtocol):
    """Protocol of one connection; see the module."""

    scope: Any  # an ASGI scope with `whole_body`, `on_disconnect` and `write_reply`

    def __init__(
        self,
        *args: Any,
        client_timeout_seconds: float,
        error_response: Callable[[str, ServiceError, str], Response],
        count_refusal: Callable[[str, ServiceError], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._error_response = error_response
        self._count_refusal = count_refusal
        self.access_log = False  # uvicorn would log the raw target
        self.url = b""
        self._timeout = client_timeout_seconds
        self._in_head = True
        self._uncounted_bytes = 0
        """Bytes received since a head began, or since the last byte of a body."""
        self._unread: RequestResponseCycle | None = None
        """Request whose head was complete in the bytes that are being parsed."""
        self._running: RequestResponseCycle | None = None
        """Request that is answered; `self.cycle` is the last received, which may wait behind it."""
        self._unsized = False
        """Whether the end of the connection is the end of the reply."""
        self._final_error: ServiceError | None = None
        """Error that ends the connection, once earlier requests are answered."""
        self._closing = False
        self._began = self.loop.time()
        """Time at which the request that is being read began."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first head on a new connection."""
        self._connection = transport
        guarded: Any = SimpleNamespace(
            write=transport.write,
            get_extra_info=transport.get_extra_info,
            pause_reading=transport.pause_reading,
            resume_reading=transport.resume_reading,
            close=self.close,
            is_closing=self.is_closing,
        )
        super().connection_made(guarded)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the requests of a closed connection."""
        for timer in (self._head_timer, self._write_timer):
            if timer:
                timer.cancel()
        super().connection_lost(exc)
        self._disconnect()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, unless an error ends the connection; reject invalid requests."""
        self._unset_keepalive_if_required()
        self._unread = None
        if self._final_error or self._closing:
            return
        self._uncounted_bytes += len(data)
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as upgrade:  # parse it without its upgrade
                    data = self._head_without_upgrade() + data[upgrade.args[0] :]
                    self.parser = httptools.HttpRequestParser(self)
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            if self._uncounted_bytes > HEAD_BYTES:
                raise HeaderFieldsTooLarge(_LARGE_HEAD)
            if self._in_head and self._uncounted_bytes and self._head_timer is None:
                self._expect_head()
        except HeaderFieldsTooLarge as error:
            self._refuse(error)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if not isinstance(cause, ServiceError):
                cause = InvalidRequest("this is not a request of HTTP/1.1")
            self._refuse(cause)

    def on_message_begin(self) -> None:
        """Start a request at its first byte."""
        super().on_message_begin()
        self._uncounted_bytes = self._uncounted_bytes or 1
        self._began = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header, as uvicorn does; drop a trailer."""
        if not self._in_head:
            return
        name = name.lower()
        self.headers.append((name, value))
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        elif name == b"transfer-encoding" and (
            value.strip().lower() != b"chunked" or self.parser.get_http_version() != "1.1"
        ):
            raise InvalidRequest("the one transfer coding is chunked, in HTTP/1.1")

    def on_headers_complete(self) -> None:
        """Check a complete head, and start its request or enqueue it after earlier requests."""
        self._check_head()
        if len(self.pipeline) >= PIPELINED:
            raise InvalidRequest(f"more than {PIPELINED} requests wait on this connection")
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self._in_head = False
        self._uncounted_bytes = 0
        if self._head_timer:
            self._stop_head_timer()
        self._unread = self.cycle

    def _check_head(self) -> None:
        """Raise for an invalid or large head; put a host in the target in place of `Host`."""
        headers, version = self.headers, self.parser.get_http_version()
        if len(headers) > HEADERS:
            raise HeaderFieldsTooLarge(f"the request has more than {HEADERS} headers")
        if version not in ("1.0", "1.1"):
            raise InvalidRequest("the version of HTTP must be 1.0 or 1.1")
        fields = dict(headers)
        host = fields.get(b"host")
        hosts = len(fields) < len(headers) and sum(name == b"host" for name, _ in headers)
        if hosts > 1 or not _HOST.fullmatch((host or b"").strip()):
            raise InvalidRequest("the Host header is not one host")
        if host is None and version == "1.1":
            raise InvalidRequest("the Host header is missing")
        if not _TARGET.fullmatch(self.url) or self.parser.get_method() == b"CONNECT":
            raise InvalidRequest("the request's target is not a path")
        if not self.url.startswith((b"/", b"*")):
            host = self.url.partition(b"://")[2].partition(b"/")[0]
            others = [header for header in headers if header[0] != b"host"]
            headers[:] = [(b"host", host), *others]
        if self._uncounted_bytes > HEAD_BYTES:
            sizes = (len(name) + len(value) + 4 for name, value in headers)
            self._uncounted_bytes = len(self.url) + sum(sizes)
            if self._uncounted_bytes > HEAD_BYTES:
                raise HeaderFieldsTooLarge(_LARGE_HEAD)

    def on_body(self, body: bytes) -> None:
        """Pass on a part of a body."""
        self._uncounted_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Finish a request; store a body that came with its head in the scope, still unread."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._in_head = True
        self._uncounted_bytes = 0
        cycle = self.cycle
        if cycle is self._unread and not cycle.waiting_for_100_continue:
            self.scope["whole_body"] = bytes(cycle.body)
            cycle.body = bytearray()

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode("ascii")
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _start_asgi_task(self, cycle: Any, app: ASGI3Application) -> None:
        self._running, self._unsized = cycle, False
        cycle.scope |= {"on_disconnect": None, "write_reply": self.write_reply}
        if cycle.scope["http_version"] == "1.0":
            cycle.waiting_for_100_continue = False  # no interim reply (RFC 9110, 10.1.1)
            cycle.send = self._send_without_chunks
        super()._start_asgi_task(cycle, app)

    def write_reply(self, status: int, head: bytes, body: bytes | memoryview) -> bool:
        """Write a whole reply, unless it has to be sent in parts; return whether it was written.

        uvicorn searches each name and value of a head for characters that would end it, and writes
        the head and the body apart, which takes a third of the time of a small request.

        `head` has the lines of the headers, with names in lower case and the body's length. A reply
        of a client that has left is dropped. uvicorn drops the body of a reply to HEAD, ends a
        connection that is not kept, and waits for a client that does not read.
        """
        cycle: Any = self._running
        if cycle.disconnected:
            return True
        for header in cycle.default_headers:
            head = b"%b: %b\r\n%b" % (*header, head)
        paused, begun = cycle.flow.write_paused, cycle.response_started
        kept = cycle.keep_alive and b"connection: close\r\n" not in head
        if not kept or paused or begun or cycle.scope["method"] == "HEAD":
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        self._connection.write(b"".join((STATUS_LINE[status], head, b"\r\n", body)))
        cycle.on_response()
        return True

    async def _send_without_chunks(self, message: Any) -> None:
        """ASGI `send` of HTTP/1.0: a reply without a length ends with the connection.

        https://www.rfc-editor.org/rfc/rfc9112#section-6.1
        """
        cycle: Any = self._running
        if message["type"] == "http.response.start":
            self._unsized = all(name.lower() != b"content-length" for name, _ in message["headers"])
            cycle.chunked_encoding = False if self._unsized else None
        elif self._unsized:
            cycle.expected_content_length = len(message.get("body", b""))
        await RequestResponseCycle.send(cycle, message)

    def on_response_complete(self) -> None:
        """Continue with the next request of the connection, or end the connection."""
        super().on_response_complete()
        if self._running and not self._running.response_complete:
            return  # the next request runs
        if self._final_error:
            self._write_error(self._final_error)
        elif not self._in_head:
            self.close()

    def _disconnect(self) -> None:
        """Report to the running request that its client has left."""
        if self._running is None:
            return
        self._running.disconnected = True
        self._running.message_event.set()
        scope: Any = self._running.scope
        scope.pop("whole_body", None)  # sent to the request as a disconnect instead
        if report := scope["on_disconnect"]:
            report()

    def _refuse(self, error: ServiceError) -> None:
        """Stop reading, and answer the current request with an error, after earlier requests."""
        self._final_error = error
        self._stop_head_timer()
        if self._in_head or self.pipeline:
            if not self._in_head:
                self.pipeline.popleft()
            if self._running and not self._running.response_complete:
                return
        elif self.cycle.response_started:
            self._cut_off()
            return
        else:
            self._disconnect()
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
        """Return whether the connection is closing, so that nothing more is written."""
        return self._closing or self._connection.is_closing()

    def close(self) -> None:
        """End the connection once the client has taken all that is written.

        If the socket were closed while the client still sends, the client would get a reset instead
        of its reply. Its bytes are therefore dropped until it closes, for at most LINGER_SECONDS.
        """
        if self.is_closing():
            return
        running: Any = self._running
        if running and not running.response_complete and self._unsized:
            self._cut_off()  # else a client would take the end for the end of the body
            return
        if self._in_head and not self._final_error:
            self.eof_received()
            return
        self._closing = True
        self._expect_taken(min(LINGER_SECONDS, self._timeout))
        self.flow.resume_reading()
        try:
            self._connection.write_eof()
        except (OSError, RuntimeError):  # the client has just left
            self._cut_off()

    def eof_received(self) -> None:
        """Close the connection; a client that sends no more has left."""
        self._closing = True
        self._expect_taken(self._timeout)
        self._connection.close()

    def _expect_taken(self, seconds: float) -> None:
        if self._write_timer is None:
            untaken = self._untaken_bytes()
            self._write_timer = self.loop.call_later(seconds, self._check_taken, untaken)

    def _check_taken(self, before: int) -> None:
        """Cut off a client that has not taken `TAKEN_BYTES` of the untaken bytes `before`."""
        left = self._untaken_bytes()
        if before - left < TAKEN_BYTES:
            self._cut_off()
            return
        self._write_timer = self.loop.call_later(self._timeout, self._check_taken, left)

    def _untaken_bytes(self) -> int:
        """Return the bytes that the client has not taken, in the transport and in the kernel."""
        queued = bytes(4)
        with contextlib.suppress(OSError):
            queued = fcntl.ioctl(self._connection.get_extra_info("socket"), TIOCOUTQ, queued)
        return self._connection.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)

    def _cut_off(self) -> None:
        """Reset the connection, and drop all bytes that were not taken, also in the kernel."""
        no_linger = struct.pack("ii", 1, 0)
        with contextlib.suppress(OSError):
            self._connection.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, no_linger)
        self._connection.abort()

    def pause_writing(self) -> None:
        """Start the write timer when the transport's buffer is full."""
        super().pause_writing()
        self._expect_taken(self._timeout)

    def resume_writing(self) -> None:
        """Stop the write timer when the transport's buffer has emptied."""
        super().resume_writing()
        if self._write_timer and not self._closing:
            self._write_timer.cancel()
            self._write_timer = None

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self._timeout, self._head_is_late)

    def _head_is_late(self) -> None:
        if self.flow.read_paused:
            self._expect_head()
        elif self._uncounted_bytes:
            seconds = f"{self._timeout:g} seconds"
            self._refuse(RequestTimeout(f"the request's head was not complete within {seconds}"))
        else:
            self.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None
