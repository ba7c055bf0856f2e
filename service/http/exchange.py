"""ASGI middleware of every request: admission, body, dispatch, errors, counting and observation."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import BodyTooLarge, RequestTimeout, ServiceError
from service.exchange import Exchange, Part
from service.http.admission import Admission
from service.inference.fingerprint import EXPECT_HEADER, FINGERPRINT_HEADER
from service.inference.timings import HEADERS
from service.settings import Settings
from service.system import logs
from service.system.budget import Reservation
from service.telemetry.requests import RequestObserver

AnyExchange = Exchange[Any, Any]
TURN_BYTES = 2**17
"""Minimum bytes of a reply that are serialised in a turn, except for its last part; and size from
which a body is read in turns."""


class Turns:
    """Round robin of large bodies and of replies that are being serialised, on the event loop.

    Serialising to JSON holds the GIL, so that threads would block the event loop, for longer the
    more threads serialise. Therefore replies are serialised on the event loop, one part a turn, and
    other callbacks run between two turns. Bodies are read in the same turns, as the loop would
    otherwise read a part of every connection's body before it does anything else.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def take(self) -> None:
        """Wait for a turn of the event loop in which no other large body or reply is served."""
        async with self._turn:
            await asyncio.sleep(0)

    async def written(self, pieces: Part | Iterator[Part]) -> AsyncGenerator[Part]:
        """Yield bytes as they are, and pieces in parts of at least `TURN_BYTES` but for the last.

        The first part does not wait for a turn, so that a small reply is written at once. Each
        piece is serialised within a millisecond when it is requested.
        """
        if isinstance(pieces, bytes | memoryview):
            yield pieces
            return
        part = part_of(pieces)
        while part:
            yield part
            if len(part) < TURN_BYTES:
                return
            await self.take()
            part = part_of(pieces)


def part_of(pieces: Iterator[Part]) -> bytes:
    """Return the next pieces joined to at least `TURN_BYTES`; fewer bytes if no more follow."""
    taken, size = list[Part](), 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= TURN_BYTES:
            break
    return b"".join(taken)


class ClientLeft(Exception):
    """The client closed the connection before its body was complete."""


def take_bytes(exchange: AnyExchange, size: int) -> None:
    """Take bytes of a body from the budget, which gets them back once it is answered."""
    service, taken = exchange.service, exchange.received_bytes
    if taken + size > service.settings.max_body_bytes:
        raise BodyTooLarge(f"the body has more than {service.settings.max_body_bytes} bytes")
    service.bodies.take(size, taken)
    exchange.received_bytes = taken + size


async def read_body(exchange: AnyExchange, receive: Receive) -> bytes:
    """Read a whole body that did not come with its head, in turns if it is large.

    Raise `RequestTimeout` if the client takes too long, apart from the time between its turns.
    """
    settings, length = exchange.service.settings, exchange.headers.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > settings.max_body_bytes:
        raise BodyTooLarge(f"the body has more than {settings.max_body_bytes} bytes")
    chunks, left, now = [], settings.client_timeout_seconds, asyncio.get_running_loop().time
    more = True
    while more:
        if exchange.received_bytes >= TURN_BYTES:
            await exchange.service.turns.take()
        began = now()
        try:
            async with asyncio.timeout(left):
                message = await receive()
        except TimeoutError:
            seconds = f"{settings.client_timeout_seconds:g} seconds"
            raise RequestTimeout(f"the body was not complete within {seconds}") from None
        left -= now() - began
        if message["type"] == "http.disconnect":
            raise ClientLeft
        chunks.append(message.get("body", b""))
        take_bytes(exchange, len(chunks[-1]))
        more = message.get("more_body", False)
    return b"".join(chunks)


ENDINGS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""Exceptions that end a request without being an error."""


class DirectRoute(Protocol):
    """Route without the layers of FastAPI and Starlette, which take most of a small request."""

    async def answer(self, exchange: Any, /) -> Response:
        """Return the endpoint's reply to a request."""


@dataclass(frozen=True)
class ExchangeMiddleware:
    """ASGI application that admits a request, reads its body, and times and counts the exchange.

    If the client leaves, all work for the request is cancelled. An unexpected exception is answered
    as an internal error; so is a panic of a Rust library, which is not an `Exception` in Python.
    """

    app: ASGIApp
    """Application of all requests without a direct route."""
    routes: Mapping[tuple[str, str], DirectRoute]
    """Direct routes by method and path."""
    service: Any
    """State of the service: its settings, budgets, metrics and turns, and what routes need."""
    admission: Admission
    error_reply: Callable[[Any, Exception], Response | None]
    """Function that returns the reply of an error; None if the error is unexpected."""
    exchange_type: type[AnyExchange] = Exchange
    """Class of the exchanges that routes get."""
    observers: Sequence[RequestObserver] = ()
    """Observers of every request, also of CORS preflights."""
    cors: CORSMiddleware | None = None
    """Answers for other origins."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self.cors and "origin" in (fields := Headers(scope=scope)):
            if scope["method"] == "OPTIONS" and "access-control-request-method" in fields:
                await self._answer_preflight(self.cors.preflight_response(fields), scope, send)
                return
            send = functools.partial(self.cors.send, send=send, request_headers=fields)
            scope.pop("write_reply", None)
        service, metrics = self.service, self.service.metrics.http
        exchange = self.exchange_type(scope, send, Reservation(service.replies), service)
        scope["exchange"] = exchange
        logs.request_id.set(exchange.request_id)
        metrics.in_flight += 1
        try:
            self.admission.admit(exchange)
            body: bytes | None = scope.pop("whole_body", None)
            if body is None:
                body = await read_body(exchange, receive)
            else:  # `HttpProtocol` has received all of it
                take_bytes(exchange, len(body))
            exchange.begin(body, receive)
            del body  # so that its reader can free it
            route = self.routes.get((scope["method"], scope["path"]))
            if route is None:
                await self.app(scope, exchange.receive, exchange.send)
            else:
                scope["route"] = route
                response = await route.answer(exchange)
                await response(scope, exchange.receive, exchange.send)
            metrics.ended(exchange)
        except BaseException as error:
            if not await self._settle(exchange, error):
                raise
        finally:
            exchange.end()
            service.bodies.give_back(exchange.received_bytes)
            exchange.reservation.release()
            metrics.in_flight -= 1
            if self.observers:
                self._observe(exchange)
            scope["exchange"] = None  # which refers to the scope

    async def _settle(self, exchange: AnyExchange, error: BaseException) -> bool:
        """Answer a request that failed; return whether its error needs nothing else."""
        if isinstance(error, ClientLeft) or (exchange.end() and isinstance(error, ENDINGS[0])):
            exchange.client_left = True
            self.service.metrics.http.ended(exchange)
            return True
        if isinstance(error, ENDINGS):
            return False
        reply = None
        if not exchange.status:  # else the connection ends in the middle of the reply
            if isinstance(error, Exception):
                reply = self.error_reply(exchange, error)
            failure = ServiceError("something went wrong inside the service")
            sent = reply or self.error_reply(exchange, failure)
            assert sent is not None  # noqa: S101 - every `ServiceError` has a reply
            await exchange.reply(sent.status_code, sent.raw_headers, bytes(sent.body))
        self.service.metrics.http.ended(exchange)
        return reply is not None

    async def _answer_preflight(self, response: Response, scope: Scope, send: Send) -> None:
        """Answer a request without key and id, which is not counted."""
        memory = Reservation(self.service.replies)
        exchange: AnyExchange = Exchange(scope, send, memory, self.service)
        exchange.request_id, exchange.status = "", response.status_code
        exchange.sent_bytes = len(response.body)
        try:
            await response(scope, exchange.receive, send)
        finally:
            self._observe(exchange)

    def _observe(self, exchange: AnyExchange) -> None:
        exchange.route = self.service.metrics.http.route_of(exchange.scope)
        exchange.ended = time.monotonic()
        for observer in self.observers:
            observer.observe(exchange)


class Application(FastAPI):
    """FastAPI application inside the exchange of each request; added middleware is around it."""

    exchanging: Callable[[ASGIApp], ASGIApp]
    """Function that returns the `ExchangeMiddleware` around FastAPI's layers."""
    service: Any
    """State of the service."""

    def build_middleware_stack(self) -> ASGIApp:
        """Return the layers around the routes."""
        added, self.user_middleware = self.user_middleware, []
        app = self.exchanging(super().build_middleware_stack())
        self.user_middleware = added
        for layer, arguments, options in reversed(added):
            app = layer(app, *arguments, **options)
        return app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        """Serve one connection event, without FastAPI's own coroutines around the layers."""
        scope["app"] = self
        self.middleware_stack = self.middleware_stack or self.build_middleware_stack()
        return self.middleware_stack(scope, receive, send)


def cors_of(settings: Settings) -> CORSMiddleware | None:
    """Return the answers for pages of other origins; None if the settings allow none."""
    if settings.cors_origins is None:
        return None
    sent = "authorization", "content-type", "accept", "x-request-id", "x-request-timeout-ms"
    read = "x-request-id", "retry-after", "x-model", FINGERPRINT_HEADER, *HEADERS.values()
    times = "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"
    costs = "x-compute-type", "x-compute-time", "x-compute-characters", "x-compute-tokens"
    return CORSMiddleware(
        FastAPI(),
        allow_origins=[origin.strip() for origin in settings.cors_origins.split(",")],
        allow_methods=["GET", "POST"],
        allow_headers=(*sent, EXPECT_HEADER),
        expose_headers=(*read, *times, *costs),
    )
