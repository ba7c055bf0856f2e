"""uvicorn around the application."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import sys
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from model.artifact.manifest import Artifact
from service import logs
from service.api.dialects import error_response
from service.app import create_app
from service.http.connection import HttpProtocol
from service.settings import Settings
from service.state import state_of

KEEP_ALIVE_SECONDS = 75
"""How long a connection may be idle: longer than clients and balancers keep one to use it again
(httpx 5 s, aiohttp 15 s, balancers 60 s), or a request could meet the end of its connection."""
LINGER_SECONDS = 1.0
"""How long the port stays open once readiness fails, and then how long a connection may be idle."""


class Server(uvicorn.Server):
    """uvicorn's, but whoever sends it requests can tell that it stops before it has stopped."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        seconds = settings.client_timeout_seconds
        http: Any = partial(
            HttpProtocol, client_timeout_seconds=seconds, error_response=error_response
        )
        config = uvicorn.Config(
            app,
            http=http,
            ws="none",
            host=settings.host,
            port=settings.port,
            log_level=settings.log_level,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=settings.drain_seconds,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        super().__init__(config)
        self._state = state_of(app)
        self._state.give_up = self.give_up
        self.failure = ""
        """Why the service has ended by itself."""

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop.

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

    async def serve_connection(self, connection: socket.socket) -> None:
        """Serve a connection that somebody else has accepted.

        Raises:
            OSError: its client has left already.

        """
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(self.make_protocol, connection)

    def make_protocol(self) -> asyncio.Protocol:
        """What speaks HTTP on a new connection."""
        protocol: Any = self.config.http_protocol_class
        state = self.lifespan.state
        return protocol(config=self.config, server_state=self.server_state, app_state=state)

    async def _close_port(self) -> None:
        """Stop listening, but for who has connected already and was not accepted yet."""
        descriptors = [one.fileno() for server in self.servers for one in server.sockets]
        listeners = [socket.socket(fileno=os.dup(descriptor)) for descriptor in descriptors]
        for server in self.servers:
            server.close()
        for listener in listeners:
            waiting = []
            with listener, contextlib.suppress(BlockingIOError):
                while True:
                    waiting.append(listener.accept()[0])
            for connection in waiting:
                with contextlib.suppress(OSError):
                    await self.serve_connection(connection)


def serve(settings: Settings, artifact: Artifact) -> int:
    """Serve until told to stop; returns the exit code.

    Raises:
        ModelError: the artifact cannot be loaded, or the device is not there.
        ServiceError: the engine cannot be started.

    """
    logs.configure(settings.log_level, settings.log_format)
    server = Server(create_app(settings, artifact), settings)
    server.run()
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
