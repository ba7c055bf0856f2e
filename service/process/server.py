"""uvicorn around the application."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from model.artifact.manifest import Artifact
from service import logs
from service.api.dialects import error_response
from service.app import create_app
from service.http.connection import HttpProtocol
from service.process.listener import Listener, bound
from service.settings import Settings
from service.state import state_of

KEEP_ALIVE_SECONDS = 75
"""How long a connection may be idle: longer than clients and balancers keep one to use it again
(httpx 5 s, aiohttp 15 s, balancers 60 s), or a request could meet the end of its connection."""
LINGER_SECONDS = 1.0
"""How long the port stays open once readiness fails, and then how long a connection may be idle."""

_log = logging.getLogger("headscope")


class Server(uvicorn.Server):
    """uvicorn's, but whoever sends it requests can tell that it stops before it has stopped."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        self._state = state_of(app)
        self._state.give_up = self.give_up
        http: Any = partial(
            HttpProtocol,
            client_timeout_seconds=settings.client_timeout_seconds,
            error_response=error_response,
            count_refusal=self._state.metrics.refused_unread,
        )
        config = uvicorn.Config(
            app,
            http=http,
            ws="none",
            log_level=settings.log_level,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=settings.drain_seconds,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        super().__init__(config)
        self.failure = ""
        """Why the service has ended by itself."""
        self._listeners: list[Listener] = []
        self._opening: set[asyncio.Task[None]] = set()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve at bound sockets until told to stop.

        What the process has made until now is no garbage; to look through it now and then, as the
        collector would, stops every request for 40 ms.
        """
        gc.freeze()
        super().run(sockets)

    @property
    def hangs(self) -> bool:
        """Whether a call still runs in an engine though the application has ended."""
        return self._state.hangs

    def drain(self) -> None:
        """From now on readiness fails, and every reply ends its connection."""
        self._state.readiness.draining = True
        close = (b"connection", b"close")
        self.config.encoded_headers.append(close)  # of the defaults that are made anew each second
        self.server_state.default_headers = [*self.server_state.default_headers, close]

    def give_up(self, why: str) -> None:
        """Stop, because nothing can be served any more: the exit code is 1."""
        self.failure = why
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, and let connections come.

        uvicorn would leave it to libuv to accept them, which ends one at once, without a word, when
        the process has no descriptor left.
        """
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(1)
        self.servers = []
        self.open(sockets or [])
        self.started = True

    def open(self, sockets: Iterable[socket.socket]) -> None:
        """Let connections come."""
        for listener in sockets:
            self._listeners.append(Listener(listener, self._take))
            host, port, *_ = listener.getsockname()
            _log.info("serving http://%s:%d", host, port)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn; a hangup ends the service in order too, unless it is ignored (`nohup`)."""
        heeded = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        )
        with super().capture_signals():
            if heeded:
                signal.signal(signal.SIGHUP, self._hang_up)
            try:
                yield
            finally:
                if heeded:
                    signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def _hang_up(self, *_: object) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, close the port, let connections end by themselves, and then as uvicorn does."""
        if not self._state.readiness.draining:
            self.drain()
            await asyncio.sleep(LINGER_SECONDS)
        await self._close_port()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LINGER_SECONDS
        while self.server_state.connections and loop.time() < deadline:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)

    def serve_connection(self, connection: socket.socket) -> None:
        """Serve a connection that was accepted."""
        opening = asyncio.create_task(self._connect(connection))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    def connection_ended(self) -> None:
        """A connection is over; nobody has to know."""

    def make_protocol(self) -> asyncio.Protocol:
        """What speaks HTTP on a new connection."""
        protocol: Any = self.config.http_protocol_class
        state = self.lifespan.state
        return protocol(config=self.config, server_state=self.server_state, app_state=state)

    def _take(self, connection: socket.socket) -> bool:
        self.serve_connection(socket.socket(fileno=connection.detach()))
        return True

    async def _connect(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(self.make_protocol, connection)
        except OSError:  # its client has left already
            connection.close()
            self.connection_ended()

    async def _close_port(self) -> None:
        """Stop listening, but for who has connected already."""
        for listener in self._listeners:
            listener.close()
        if self._opening:
            await asyncio.wait(self._opening)


def serve(settings: Settings, artifacts: Sequence[Artifact]) -> int:
    """Serve until told to stop; returns the exit code.

    Raises:
        ModelError: the artifact cannot be loaded, or the device is not there.
        ServiceError: the engine cannot be started.
        OSError: the port cannot be had.

    """
    logs.configure(settings.log_level, settings.log_format)
    with bound(settings.host, settings.port) as sockets:
        server = Server(create_app(settings, artifacts), settings)
        server.run(sockets)
    return end(server)


def end(server: Server) -> int:
    """The exit code of a server that has run; one that has failed ends the process here.

    So does one in whose engine a call hangs, which would keep the interpreter from ending.
    """
    if server.failure or server.hangs:
        logging.shutdown()
        sys.stderr.flush()
        os._exit(1)
    return 0 if server.started else 1
