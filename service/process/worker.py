"""One of the processes that serve a port together: `python -P -m service.process.worker FD`.

It never listens: the supervisor accepts, and hands it connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator

from fastapi import FastAPI

from model.artifact.manifest import load_artifact
from model.errors import ArtifactError, ModelError
from service import logs, system
from service.app import create_app
from service.errors import ServiceError
from service.health.peers import Peers
from service.process.channel import CLOSED, CONNECTION, DRAIN, LOADED, MESSAGE_BYTES, Assignment
from service.process.server import Server, end
from service.settings import Settings
from service.state import state_of
from service.telemetry.shared import share

LATE_SECONDS = 10
"""A worker that still runs so long after its last request should have ended is stuck."""


class WorkerServer(Server):
    """A server whose connections come over a channel; it stops when the channel ends."""

    def __init__(self, app: FastAPI, settings: Settings, channel: socket.socket) -> None:
        super().__init__(app, settings)
        self._late_seconds = settings.drain_seconds + LATE_SECONDS
        self._channel = channel
        self._closed = 0
        """Connections that have ended and were not yet reported."""
        self._opening: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the supervisor's, even those that a terminal sends to everyone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Start the application, and say so."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(1)
        self.servers = []
        self._channel.setblocking(False)
        asyncio.get_running_loop().add_reader(self._channel, self._receive)
        self._channel.send(LOADED)
        self.started = True

    def _receive(self) -> None:
        while True:
            try:
                message, descriptors, *_ = socket.recv_fds(
                    self._channel, MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except ConnectionResetError:  # the supervisor was killed; what it sent is still there
                continue
            if message == CONNECTION:
                self._open(descriptors)
            elif message == DRAIN:
                self.drain()
            else:
                self._stop()
                return

    def _open(self, descriptors: list[int]) -> None:
        if not descriptors:  # this process has no descriptor left to give it
            self._report_closed()
        for descriptor in descriptors:
            connection = socket.socket(fileno=descriptor)
            opening = asyncio.create_task(self.serve_connection(connection))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def serve_connection(self, connection: socket.socket) -> None:
        """Serve a connection, and report its end."""
        try:
            await super().serve_connection(connection)
        except OSError:
            connection.close()
            self._report_closed()

    def make_protocol(self) -> asyncio.Protocol:
        """What speaks HTTP on a new connection, and reports its end."""
        protocol = super().make_protocol()
        lost = protocol.connection_lost

        def connection_lost(exc: Exception | None) -> None:
            lost(exc)
            self._report_closed()

        protocol.connection_lost = connection_lost  # type: ignore[method-assign]
        return protocol

    def _report_closed(self) -> None:
        self._closed += 1
        with contextlib.suppress(OSError):  # full for now, or the supervisor is gone
            self._channel.send(CLOSED + str(self._closed).encode())
            self._closed = 0

    def _stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._channel)
        if not self._state.readiness.draining:
            self.drain()
        self.should_exit = True
        watchdog = threading.Timer(self._late_seconds, os._exit, (1,))
        watchdog.daemon = True
        watchdog.start()


def application(assignment: Assignment) -> FastAPI:
    """The service that a worker is part of.

    Raises:
        ModelError: the artifact cannot be loaded, or is not the others'.
        ServiceError: the engine cannot be started.

    """
    artifact = load_artifact(assignment.artifact)
    if artifact.sha256 != assignment.artifact_sha256:
        raise ArtifactError(f"{artifact.folder} is not the artifact that the service started with")
    share(assignment.index)
    peers = Peers(assignment.folder, assignment.index, assignment.settings.workers)
    app = create_app(assignment.settings, artifact, peers=peers)
    if assignment.restarted:
        state_of(app).metrics.worker_restarts.inc()
    return app


def main() -> int:
    """Do what the supervisor assigns."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    system.settle_allocator()
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        assignment = Assignment.model_validate_json(channel.recv(MESSAGE_BYTES))
        logs.configure(assignment.settings.log_level, assignment.settings.log_format)
        try:
            app = application(assignment)
        except (ModelError, ServiceError, ValueError, OSError) as error:
            channel.send(" ".join(str(error).split()).encode())
            return 1
        server = WorkerServer(app, assignment.settings, channel)
        server.run()
    return end(server)


if __name__ == "__main__":
    sys.exit(main())
