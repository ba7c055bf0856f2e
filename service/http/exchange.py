"""ASGI middleware that gives each request its context, and reads, times and counts it."""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import BodyTooLarge, RequestTimeout, ServiceError
from service.http.admission import Admission
from service.http.turns import TURN_BYTES, Turns
from service.request_context import RequestContext, header_fields
from service.system import logs
from service.system.budget import ByteBudget, Reservation
from service.telemetry.http_metrics import HttpMetrics


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


ErrorResponse = Callable[[str, ServiceError, str], Response]
"""Function from a path, an error and a request id to the reply in the path's dialect."""
ENDINGS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""Exceptions that end a request without being an error."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_BODY_HEADERS = (b"content-length", b"transfer-encoding")


def new_request_id() -> str:
    """Return a random id for a request without one."""
    return f"{random.getrandbits(128):032x}"


class ExchangeMiddleware:
    """Middleware that admits a request, reads its body, and times and counts the exchange.

    If the client leaves, all work for the request is cancelled. An unexpected exception is answered
    as an internal error; so is a panic of a Rust library, which is not an `Exception` in Python.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: HttpMetrics,
        limits: BodyLimits,
        budgets: tuple[ByteBudget, ByteBudget],
        admission: Admission,
        error_response: ErrorResponse,
    ) -> None:
        """Set the layers; budgets are of all bodies in flight, and of all requests and replies."""
        self.app = app
        self.metrics = metrics
        self.limits = limits
        self.admission = admission
        self.error_response = error_response
        self.bodies, self.requests = budgets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(scope, send, Reservation(self.requests))
        logs.request_id.set(exchange.context.request_id)
        self.metrics.in_flight += 1
        try:
            await self._counted(exchange, receive)
        finally:
            self.metrics.in_flight -= 1

    async def _counted(self, exchange: Exchange, receive: Receive) -> None:
        try:
            await self._answer(exchange, receive)
        except ENDINGS:
            raise
        except BaseException:
            if not exchange.context.status:
                failure = ServiceError("something went wrong inside the service")
                await self._refuse(exchange, receive, failure)
            exchange.count(self.metrics)
            raise
        if exchange.client_left:
            self.metrics.disconnects.inc()
        else:
            exchange.count(self.metrics)

    async def _answer(self, exchange: Exchange, receive: Receive) -> None:
        body, context = RequestBody(self.limits, self.bodies), exchange.context
        try:
            self.admission.admit(exchange.scope, context)
            content = await body.read(exchange.scope, receive)
            exchange.body_complete, context.received = True, time.monotonic()
            replayed = ReplayedBody(content)
            del content  # so that its reader can free it
            answer = self.app(exchange.scope, replayed, exchange.send)
            await _until_disconnect(answer, exchange, receive)
        except ClientLeft:
            exchange.client_left = True
        except ServiceError as error:
            if context.status:  # the reply has begun, so the connection ends in the middle of it
                raise
            await self._refuse(exchange, receive, error)
        finally:
            exchange.received_bytes = body.size
            self.bodies.give_back(body.size)
            context.reservation.release()

    async def _refuse(self, exchange: Exchange, receive: Receive, error: ServiceError) -> None:
        self.metrics.refused(exchange.scope, error)
        response = self.error_response(exchange.scope["path"], error, exchange.context.request_id)
        await response(exchange.scope, receive, exchange.send)


class Exchange:
    """Request and reply, with the context that routes and telemetry share."""

    __slots__ = ("_head", "_send", "_whole", "body_complete", "client_left", "complete", "context",
                 "received_bytes", "scope", "sent_bytes")  # fmt: skip

    def __init__(self, scope: Scope, send: Send, reservation: Reservation) -> None:
        headers = header_fields(scope["headers"])
        context = RequestContext[object](_request_id(headers), reservation, headers)
        self.context = scope["context"] = context
        self.scope = scope
        self.body_complete = False
        """Whether the last byte of the body was received."""
        self.complete = False
        """Whether the last byte of the reply was sent."""
        self.client_left = False
        self.received_bytes = self.sent_bytes = 0
        self._send = send
        self._whole: Callable[..., bool] | None = getattr(send, "whole", None)
        """Function of the server that writes a whole reply; see `WholeReplySend`."""
        self._head: Message | None = None
        """Head of a reply that may be written at once with its body."""

    @property
    def seconds(self) -> float:
        """Seconds since the body was complete; until then, since the head was complete."""
        return time.monotonic() - self.context.received

    async def send(self, message: Message) -> None:
        """Send a part of the reply; add the request's id and time to its head.

        A head with the body's length waits for the body, which follows at once.
        """
        if message["type"] == "http.response.start":
            self.context.status = message["status"]
            headers = message["headers"] = [*message.get("headers", []), *self._headers()]
            if self._whole and any(name == b"content-length" for name, _ in headers):
                self._head = message
                return
        else:
            body = message.get("body", b"")
            self.complete = not message.get("more_body", False)
            self.sent_bytes += len(body)
            if head := self._head:
                self._head = None
                whole = self._whole if self.complete else None
                if whole and whole(head["status"], head["headers"], body):
                    return
                await self._send(head)
        await self._send(message)

    def count(self, metrics: HttpMetrics) -> None:
        """Count the request and its reply."""
        sizes = self.received_bytes, self.sent_bytes
        metrics.answered(self.scope, self.context, self.seconds, *sizes)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        headers = [
            (b"x-request-id", self.context.request_id.encode("ascii")),
            (b"x-total-time", str(round(1000 * self.seconds)).encode("ascii")),
        ]
        if fingerprint := self.context.fingerprint:
            headers.append(fingerprint)
        if not self.body_complete and _has_body(self.context.headers):
            headers.append((b"connection", b"close"))
        return headers


async def _until_disconnect(answer: Awaitable[None], exchange: Exchange, receive: Receive) -> None:
    """Run the application; cancel it if the client leaves before its reply is complete.

    `HttpProtocol` calls `on_disconnect` of the request's scope. Behind another server, a task waits
    for the disconnect, which `receive` returns also after a complete reply.
    """
    running = asyncio.current_task()
    assert running is not None  # noqa: S101 - a server runs each request in a task

    def leave() -> None:
        if not exchange.client_left and not exchange.complete:
            exchange.client_left = True
            running.cancel()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        leave()

    scope = exchange.scope
    server_reports = "on_disconnect" in scope
    watching = None if server_reports else asyncio.create_task(watch())
    if server_reports:
        scope["on_disconnect"] = leave
    try:
        await answer
    except asyncio.CancelledError:
        if not (exchange.client_left and running.uncancel() == 0):
            raise
    finally:
        if watching:
            watching.cancel()
        else:
            scope["on_disconnect"] = None


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"")
    return str(given, "ascii") if _REQUEST_ID.fullmatch(given) else new_request_id()


def _has_body(headers: Mapping[bytes, bytes]) -> bool:
    return any(headers.get(name, b"0") != b"0" for name in _BODY_HEADERS)
