"""Request and its reply, shared by the HTTP layer, the routes and telemetry."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from service.errors import ServiceError
from service.inference.timings import NO_WARNINGS, Timings
from service.system.budget import Reservation

Service = TypeVar("Service")
Model = TypeVar("Model")
"""Types of the service's state and of a served model, which telemetry and the HTTP layer do not
know."""
ErrorForm = Callable[[ServiceError, str], Response]
"""Function from an error and a request id to the reply."""
Headers = Iterable[tuple[bytes, bytes]]
"""Names in lower case, and values."""
METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "QUERY"}
Part = bytes | memoryview
NO_FINGERPRINT = (b"", b"")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_BODY_HEADERS = (b"content-length", b"transfer-encoding")


def new_request_id() -> str:
    """Return a random id for a request without one."""
    return f"{random.getrandbits(128):032x}"


class Exchange(Generic[Service, Model]):
    """State of one request and its reply, stored in the ASGI scope as `exchange`."""

    model: Model
    """Model that answers the request, once the route has chosen it."""

    def __init__(
        self, scope: Scope, send: Send, reservation: Reservation, service: Service
    ) -> None:
        self.scope = scope
        self.service = service
        given: list[tuple[bytes, bytes]] = scope["headers"]
        headers = dict(given)
        if len(headers) < len(given):
            for repeated in headers:
                headers[repeated] = b", ".join(value for name, value in given if name == repeated)
        self.headers = headers
        """Value of each header by its name in lower case; values of a repeated header are joined by
        commas (RFC 9110, 5.3)."""
        name = headers.get(b"x-request-id", b"")
        self.request_id = name.decode() if _REQUEST_ID.fullmatch(name) else new_request_id()
        self.reservation = reservation
        """Memory of the request; released once the request is answered."""
        self.began = self.received = time.monotonic()
        """`time.monotonic()` when the head was complete, and when the body was, or the head."""
        self.replied = self.ended = 0.0
        """`time.monotonic()` when the reply began, and when the request ended; 0 until then."""
        self.route = ""
        """Template of the route, or `unmatched`, once the request has ended."""
        self.body: bytes | None = None
        """Body that no route has read yet."""
        self.body_complete = False
        """Whether the last byte of the body was received."""
        self.client = self.key = ""
        """Name of the API key, or address without keys; and name of the key, empty without keys.
        Requests of one client share one rate of service."""
        self.status = 0
        """Status of the reply; 0 until the reply has begun."""
        self.fingerprint = NO_FINGERPRINT
        """Header with the fingerprint of the model and the engine, once the model is chosen."""
        self.model_name = b""
        """Model that a good reply names in `x-model`; empty for none."""
        self.error_form: ErrorForm | None = None
        """Format of errors for the request's body; None for the format of the path's dialect."""
        self.predicted_bytes = self.received_bytes = self.sent_bytes = 0
        """Predicted bytes of the reply, and bytes of both bodies so far."""
        self.timings: Timings | None = None
        """Timings of a reply with computation; for a streamed reply, of its first part."""
        self.complete = self.client_left = False
        """Whether the last byte of the reply was sent, and whether the client left before."""
        self._leaver: asyncio.Task[object] | None = None
        """Task to cancel when the client leaves."""
        self._watch: asyncio.Task[None] | None = None
        self._send = send
        self._write: Callable[[int, bytes, Part], bool] | None = scope.pop("write_reply", None)
        """Function of the server that writes a whole reply; see `HttpProtocol.write_reply`."""

    @property
    def method(self) -> str:
        """Method of the request; `_OTHER` if it is unknown, as in OpenTelemetry's conventions."""
        return self.scope["method"] if self.scope["method"] in METHODS else "_OTHER"

    def begin(self, body: bytes, receive: Receive) -> None:
        """Store the whole body; if the client leaves from now on, cancel the current task.

        `HttpProtocol` calls `on_disconnect` of the scope. Behind another server, a task waits for
        the disconnect, which `receive` returns also after a complete reply.
        """
        self.body, self.body_complete, self.received = body, True, time.monotonic()
        self._leaver = asyncio.current_task()
        if "on_disconnect" in self.scope:
            self.scope["on_disconnect"] = self.leave
        else:
            self._watch = asyncio.create_task(self._wait(receive))

    def take_body(self) -> bytes:
        """Return the body, which is not kept, so that its reader can free it."""
        body, self.body = self.body, None
        return body or b""

    def leave(self) -> None:
        """Cancel the work for a client that has left, unless its reply is complete."""
        if self._leaver and not self.client_left and not self.complete:
            self.client_left = True
            self._leaver.cancel()

    async def _wait(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.leave()

    def end(self) -> bool:
        """Let `leave` have no effect any more; return whether it has cancelled the current task."""
        leaver, self._leaver = self._leaver, None
        if leaver is None:
            return False
        if self._watch:
            self._watch.cancel()
        else:
            self.scope["on_disconnect"] = None
        return self.client_left and leaver.uncancel() == 0

    async def receive(self) -> Message:
        """ASGI `receive`: return the body as one message, once; then wait for ever."""
        if self.body is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self.take_body(), "more_body": False}

    async def send(self, message: Message) -> None:
        """ASGI `send`: add the headers of every reply to the head."""
        if message["type"] == "http.response.start":
            await self.reply(message["status"], message.get("headers", ()))
            return
        self.complete = not message.get("more_body", False)
        self.sent_bytes += len(message.get("body", b""))
        await self._send(message)

    async def reply(
        self, status: int, headers: Headers, body: Part | None = None, length: int | None = None
    ) -> None:
        """Send a whole reply, in one write if the server can; or a head whose body `send` sends.

        `headers` are of this reply alone, and the length of a whole one may be missing. A reply
        with `timings` has headers of them, too.
        """
        if body is not None:
            length = len(body)
        head = self._head(status, headers, length)
        self.status, self.replied = status, time.monotonic()
        if body is not None:
            self.complete, self.sent_bytes = True, len(body)
            if self._write and self._write(status, head, body):
                return
        lines = [tuple(line.split(b": ", 1)) for line in head.split(b"\r\n")[:-1]]
        await self._send({"type": "http.response.start", "status": status, "headers": lines})
        if body is not None:
            await self._send({"type": "http.response.body", "body": body})

    def _head(self, status: int, headers: Headers, length: int | None) -> bytes:
        """Return the lines of all headers; `ValueError` if a line end would begin another one."""
        lines, count = b"", 0
        for header in headers:
            if length is None or header[0] != b"content-length":
                lines += b"%b: %b\r\n" % header
                count += 1
        if not lines.count(b"\r") == lines.count(b"\n") == count:
            raise ValueError("a header has a line end")
        if timings := self.timings:  # named as text-embeddings-inference does, in ms
            lines += b"x-tokenization-time: %d\r\nx-queue-time: %d\r\nx-inference-time: %d\r\n" % (
                round(1000 * timings.tokenization_seconds),
                round(1000 * timings.queue_seconds),
                round(1000 * timings.inference_seconds),
            )
            lines += b"x-compute-tokens: %d\r\n" % timings.tokens
            warned = timings.warnings is not NO_WARNINGS
            for name, value in timings.warnings.headers().items() if warned else ():
                lines += f"{name}: {value}\r\n".encode()
        if length is not None:
            lines += b"content-length: %d\r\n" % length
        milliseconds = round(1000 * (time.monotonic() - self.received))
        lines += b"x-request-id: %b\r\n" % self.request_id.encode()
        lines += b"x-total-time: %d\r\n" % milliseconds
        if self.fingerprint is not NO_FINGERPRINT:
            lines += b"%b: %b\r\n" % self.fingerprint
        if self.model_name and status < 400:
            lines += b"x-model: %b\r\n" % self.model_name
        if not self.body_complete and any(
            self.headers.get(name, b"0") != b"0" for name in _BODY_HEADERS
        ):
            lines += b"connection: close\r\n"
        return lines
