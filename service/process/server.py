"""uvicorn server of the application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from service.api.dialects import error_response
from service.http.connection import HttpProtocol
from service.models.state import state_of
from service.process.listener import Listener, ServiceManager
from service.settings import Settings
from service.system import resources

KEEP_ALIVE_SECONDS = 75
"""Time limit of an idle connection. It exceeds the time for which clients and balancers keep idle
connections (httpx 5 s, aiohttp 15 s, balancers 60 s), so that no request meets a closing one."""
FAILED_SECONDS = 1.0
"""Maximum time for which the port stays open after the service has failed."""
IDLE_SECONDS = 1.0
"""Time limit of an idle connection after the port is closed."""


class Server(uvicorn.Server):
    """uvicorn server with a drain phase before shutdown."""

    def __init__(
        self, app: FastAPI, settings: Settings, manager: ServiceManager | None = None
    ) -> None:
        self._state = state_of(app)
        http: Any = partial(
            HttpProtocol,
            client_timeout_seconds=settings.client_timeout_seconds,
            error_response=error_response,
            count_refusal=self._state.metrics.http.refused_unread,
        )
        config = uvicorn.Config(
            app,
            http=http,
            interface="asgi3",
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
        self._state.connections.append(self.server_state.connections)
        self._settings = settings
        self._manager = manager or ServiceManager()
        self._scrapes = ServerState()
        """Connections at the metrics port, which stays open during the drain."""
        self._listeners: list[Listener] = []
        self._opening: set[asyncio.Task[None]] = set()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on bound sockets until a signal to stop."""
        resources.end_start()
        super().run(sockets)

    @property
    def failed(self) -> bool:
        """Whether the service has failed, so that it cannot answer."""
        return bool(self._state.failures)

    @property
    def hangs(self) -> bool:
        """Whether an engine call still runs although the application has ended."""
        return self._state.hangs

    def drain(self) -> None:
        """Start the drain: readiness fails, and every reply closes its connection."""
        self._state.readiness.draining = True
        close = (b"connection", b"close")
        self.config.encoded_headers.append(close)  # source of the defaults each second
        for state in (self.server_state, self._scrapes):
            state.default_headers = [*state.default_headers, close]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, and accept connections.

        uvicorn would let libuv accept them, which silently drops connections when the process has
        no descriptor left.
        """
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(1)
        self.servers = []
        self.open(sockets or [])
        self.started = True
        self._manager.ready("Serving")
        self._manager.watch(lambda: not self.failed)

    def open(self, sockets: Iterable[socket.socket]) -> None:
        """Start listening on the sockets."""
        self._listeners += [Listener(one, self._take, self._settings) for one in sockets]

    async def on_tick(self, counter: int) -> bool:
        """Count noted events, stop after a failure, and update default headers like uvicorn.

        The headers are also of the metrics port. uvicorn calls this ten times a second.
        """
        self._state.metrics.registry.count()
        if self.failed:
            self.should_exit = True
        ended = await super().on_tick(counter)
        self._scrapes.default_headers = self.server_state.default_headers
        return ended

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals like uvicorn, and stop also at SIGHUP, unless it is ignored (`nohup`)."""
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
        """Drain, close the port, wait for connections to end, and shut down like uvicorn.

        The metrics port is closed last, so that metrics are available during the shutdown.
        """
        self._manager.stopping("Stopping after the last requests")
        del sockets  # `bound` closes them at the end; uvicorn would close them at once
        if not self._state.readiness.draining:
            self.drain()
            await self._linger()
        scraped = {listener for listener in self._listeners if listener.scraped}
        await self._close(set(self._listeners) - scraped)
        await _ended(self.server_state)
        await super().shutdown()
        await self._close(scraped)
        for connection in [*self._scrapes.connections]:
            connection.shutdown()
        await _ended(self._scrapes)
        self._state.metrics.registry.count()

    async def _linger(self) -> None:
        """Accept requests during the drain delay, until a second signal to stop.

        The delay is shorter after a failure, as balancers have noticed it already.
        """
        loop = asyncio.get_running_loop()
        delay = self._settings.drain_delay_seconds
        end = loop.time() + (min(delay, FAILED_SECONDS) if self.failed else delay)
        while (left := end - loop.time()) > 0 and not self.force_exit:
            await asyncio.sleep(min(left, 0.1))

    def serve_connection(self, connection: socket.socket) -> None:
        """Serve an accepted connection."""
        opening = asyncio.create_task(self._connect(connection))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    def connection_ended(self) -> None:
        """Do nothing; workers override this to report the end of a connection."""

    def make_protocol(self, connections: ServerState) -> asyncio.Protocol:
        """Return the HTTP protocol of a new connection, which is added to `connections`."""
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
        except OSError:  # the client has already left
            connection.close()
            self.connection_ended()

    async def _close(self, listeners: Iterable[Listener]) -> None:
        """Stop listening, after accepting the connections in the backlog."""
        for listener in listeners:
            listener.close()
        if self._opening:
            await asyncio.wait(self._opening)


async def _ended(connections: ServerState) -> None:
    """Wait until all connections have ended, for at most `IDLE_SECONDS`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + IDLE_SECONDS
    while connections.connections and loop.time() < deadline:
        await asyncio.sleep(0.02)


def end(server: Server) -> int:
    """Return the exit code of a server that has run, or end the process with exit code 1.

    The process ends here if the service has failed, or if an engine call hangs, which would keep
    the interpreter from ending.
    """
    if server.failed or server.hangs:
        logging.shutdown()
        sys.stderr.flush()
        os._exit(1)
    return 0 if server.started else 1
