"""One request and its reply, in pure ASGI: id, admission, body, timing, count, the unforeseen."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import ServiceError
from service.http.admission import Admission
from service.http.body import BodyLimits, ClientLeft, ReplayedBody, RequestBody
from service.request_context import RequestContext
from service.system import logs
from service.system.budget import ByteBudget, Reservation
from service.telemetry.http_metrics import AnsweredRequest, HttpMetrics

ErrorResponse = Callable[[str, ServiceError, str], Response]
"""Path, error and request id → the error in the form of the path's dialect."""
ENDINGS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""What ends a request, and is no failure of it."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_BODY_HEADERS = {b"content-length", b"transfer-encoding"}


def new_request_id() -> str:
    """The id of a request that did not bring one."""
    return f"{random.getrandbits(128):032x}"


class ExchangeMiddleware:
    """Gives each request an id, admits it, reads the body, times and counts the exchange.

    A client that leaves cancels all work below. An exception that nobody foresaw is answered as an
    internal error; so is a panic of a library in Rust, which is no `Exception` in Python.
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
        """Stand around an application.

        Args:
            app: answers requests whose body is complete.
            metrics: of requests, refusals and clients that left.
            limits: bounds on one body.
            budgets: bytes of all bodies in flight, and bytes of all requests and replies.
            admission: lets requests in before their bodies are read.
            error_response: the form of an error.

        """
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
        with self.metrics.track_request():
            await self._counted(exchange, receive)

    async def _counted(self, exchange: Exchange, receive: Receive) -> None:
        try:
            await self._answer(exchange, receive)
        except ENDINGS:
            raise
        except BaseException:
            if not exchange.status:
                failure = ServiceError("something went wrong inside the service")
                await self._refuse(exchange, receive, failure)
            self.metrics.answered(exchange.summary())
            raise
        if exchange.client_left:
            self.metrics.disconnects.inc()
        else:
            self.metrics.answered(exchange.summary())

    async def _answer(self, exchange: Exchange, receive: Receive) -> None:
        body, context = RequestBody(self.limits, self.bodies), exchange.context
        try:
            self.admission.admit(exchange.scope, context)
            content = await body.read(exchange.scope, receive)
            exchange.body_complete, context.received = True, time.monotonic()
            replayed = ReplayedBody(content)
            del content  # its reader keeps it for as long as it needs it
            answer = self.app(exchange.scope, replayed, exchange.send)
            ended = await _until_disconnect(answer, receive, lambda: exchange.complete)
            exchange.client_left = not ended
        except ClientLeft:
            exchange.client_left = True
        except ServiceError as error:
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
    """The state of one request and its reply."""

    __slots__ = ("_send", "body_complete", "client_left", "complete", "context",
                 "received_bytes", "scope", "sent_bytes", "status")  # fmt: skip

    def __init__(self, scope: Scope, send: Send, reservation: Reservation) -> None:
        self.context: RequestContext[object] = RequestContext(_request_id(scope), reservation)
        scope["context"] = self.context
        self.scope = scope
        self.body_complete = False
        self.status = 0
        """Status of the reply; 0 until it has begun."""
        self.complete = False
        """Whether the last byte of the reply was sent."""
        self.client_left = False
        self.received_bytes = self.sent_bytes = 0
        self._send = send

    @property
    def seconds(self) -> float:
        """Seconds since the body was complete, or since the request began."""
        return time.monotonic() - self.context.received

    async def send(self, message: Message) -> None:
        """Send a part of the reply, its head with the request's id and time."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", []), *self._headers()]
        else:
            self.complete = not message.get("more_body", False)
            self.sent_bytes += len(message.get("body", b""))
        await self._send(message)

    def summary(self) -> AnsweredRequest:
        """The request and its reply as the metrics count them."""
        sizes = self.received_bytes, self.sent_bytes
        return AnsweredRequest(self.scope, self.context, self.status, self.seconds, *sizes)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        headers = [
            (b"x-request-id", self.context.request_id.encode("ascii")),
            (b"x-total-time", str(round(1000 * self.seconds)).encode("ascii")),
        ]
        if fingerprint := self.context.fingerprint:
            headers.append(fingerprint)
        if not self.body_complete and _has_body(self.scope):
            headers.append((b"connection", b"close"))
        return headers


async def _until_disconnect(
    answer: Awaitable[None], receive: Receive, complete: Callable[[], bool]
) -> bool:
    """Run the application; cancel it when the client leaves before its reply is complete.

    Args:
        answer: the application's run.
        receive: tells of the client's departure; servers say "disconnect" after a complete reply
            as well.
        complete: whether the reply is complete.

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
    return new_request_id()


def _has_body(scope: Scope) -> bool:
    headers: list[tuple[bytes, Any]] = scope["headers"]
    return any(name in _BODY_HEADERS and value != b"0" for name, value in headers)
