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
from uvicorn.server import ServerState

from model.artifact.manifest import Artifact
from service.api.dialects import error_response
from service.app import create_app
from service.http.connection import HttpProtocol
from service.process.listener import Listener, bound
from service.serving.banner import address_line
from service.serving.state import state_of
from service.settings import Settings
from service.system import logs

KEEP_ALIVE_SECONDS = 75
"""How long a connection may be idle: longer than clients and balancers keep one to use it again
(httpx 5 s, aiohttp 15 s, balancers 60 s), or a request could meet the end of its connection."""
FAILED_SECONDS = 1.0
"""How long the port stays open at most once the service has failed."""
IDLE_SECONDS = 1.0
"""How long a connection may be idle once the port is closed."""

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
            count_refusal=self._state.metrics.http.refused_unread,
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
        self._state.connections = self.server_state.connections
        self.failure = ""
        """Why the service has ended by itself."""
        self._settings = settings
        self._scrapes = ServerState()
        """Connections at the metrics port, which outlives the drain and is not waited for."""
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
        for state in (self.server_state, self._scrapes):
            state.default_headers = [*state.default_headers, close]

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
            _log.info("%s", address_line(self._settings, host, port))

    async def on_tick(self, counter: int) -> bool:
        """As uvicorn, for both kinds of connections."""
        ended = await super().on_tick(counter)
        self._scrapes.default_headers = self.server_state.default_headers
        return ended

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
        """Drain, close the port, let connections end by themselves, and then as uvicorn does.

        The metrics port is closed last, so that what is left to do is seen until all is done.
        """
        del sockets  # which uvicorn would close at once; `bound` does so at the end
        if not self._state.readiness.draining:
            self.drain()
            await self._linger()
        scraped = {one for one in self._listeners if one.port == self._settings.metrics_port}
        await self._close(set(self._listeners) - scraped)
        await _ended(self.server_state)
        await super().shutdown()
        await self._close(scraped)
        for connection in [*self._scrapes.connections]:
            connection.shutdown()
        await _ended(self._scrapes)

    async def _linger(self) -> None:
        """Take requests for as long as balancers may need, unless told to stop once more.

        They have seen already that a service has failed.
        """
        loop = asyncio.get_running_loop()
        delay = self._settings.drain_delay_seconds
        end = loop.time() + (min(delay, FAILED_SECONDS) if self.failure else delay)
        while (left := end - loop.time()) > 0 and not self.force_exit:
            await asyncio.sleep(min(left, 0.1))

    def serve_connection(self, connection: socket.socket) -> None:
        """Serve a connection that was accepted."""
        opening = asyncio.create_task(self._connect(connection))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    def connection_ended(self) -> None:
        """A connection is over; nobody has to know."""

    def make_protocol(self, connections: ServerState) -> asyncio.Protocol:
        """What speaks HTTP on a new connection, which is one of these."""
        protocol: Any = self.config.http_protocol_class
        state = self.lifespan.state
        return protocol(config=self.config, server_state=connections, app_state=state)

    def _take(self, connection: socket.socket) -> bool:
        self.serve_connection(socket.socket(fileno=connection.detach()))
        return True

    async def _connect(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            scraped = connection.getsockname()[1] == self._settings.metrics_port
            make = partial(self.make_protocol, self._scrapes if scraped else self.server_state)
            await loop.connect_accepted_socket(make, connection)
        except OSError:  # its client has left already
            connection.close()
            self.connection_ended()

    async def _close(self, listeners: Iterable[Listener]) -> None:
        """Stop listening, but for who has connected already."""
        for listener in listeners:
            listener.close()
        if self._opening:
            await asyncio.wait(self._opening)


async def _ended(connections: ServerState) -> None:
    """Wait until connections have ended by themselves, as long as they may be idle."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + IDLE_SECONDS
    while connections.connections and loop.time() < deadline:
        await asyncio.sleep(0.02)


def serve(settings: Settings, artifacts: Sequence[Artifact]) -> int:
    """Serve until told to stop; returns the exit code.

    Raises:
        ModelError: the artifact cannot be loaded, or the device is not there.
        ServiceError: the engine cannot be started.
        OSError: the port cannot be had.

    """
    logs.configure(settings.log_level, settings.log_format)
    with bound(settings.host, settings.port, settings.metrics_port) as sockets:
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
