"""Worker process of a supervisor: `python -P -m service.process.worker FD`.

A worker never listens: the supervisor accepts connections, and hands them over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from fastapi import FastAPI
from uvicorn.server import ServerState

from model.artifact.manifest import Artifact, load_artifact
from model.errors import ArtifactError, ModelError
from service.app import create_app
from service.errors import ServiceError
from service.health.readiness import Peers
from service.models.state import state_of
from service.process.channel import BEAT_SECONDS, MESSAGE_BYTES, SIGNALS, Assignment, Message
from service.process.folder import held
from service.process.server import Server, end
from service.settings import Settings
from service.system import logs, resources
from service.telemetry.shared import share

LATE_SECONDS = 10
"""Time after the end of the drain at which a worker that still runs ends itself."""


class WorkerServer(Server):
    """Server that receives connections over a channel, and stops by a message or by its end."""

    def __init__(self, app: FastAPI, settings: Settings, channel: socket.socket) -> None:
        super().__init__(app, settings)
        self._late_seconds = settings.drain_seconds + LATE_SECONDS
        self._channel = channel
        self._closed = 0
        """Number of ended connections that are not reported yet."""
        self._exhausted = logs.Occasional()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the supervisor, also signals that a terminal sends to all processes."""
        yield

    def open(self, sockets: Iterable[socket.socket]) -> None:  # noqa: ARG002
        """Report that the worker accepts connections."""
        self._channel.setblocking(False)
        asyncio.get_running_loop().add_reader(self._channel, self._receive)
        self._channel.send(Message.LOADED)
        self._beat()

    def _receive(self) -> None:
        while True:
            try:
                message, descriptors, *_ = socket.recv_fds(
                    self._channel, MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except ConnectionResetError:  # the supervisor was killed; its messages are still there
                continue
            if message == Message.CONNECTION:
                self._take_over(descriptors)
            elif message == Message.DRAIN:
                self.drain()
            elif message == Message.FINISH:
                self._stop()
            else:
                asyncio.get_running_loop().remove_reader(self._channel)
                self._stop()
                return

    def _take_over(self, descriptors: list[int]) -> None:
        if not descriptors:
            self._exhausted.log("connections are lost: this worker has no descriptor for them")
            self.connection_ended()
        for descriptor in descriptors:
            self.serve_connection(socket.socket(fileno=descriptor))

    def make_protocol(self, connections: ServerState) -> asyncio.Protocol:
        """Return the HTTP protocol of a new connection, which reports its end."""
        protocol = super().make_protocol(connections)
        lost = protocol.connection_lost

        def connection_lost(exc: Exception | None) -> None:
            lost(exc)
            self.connection_ended()

        protocol.connection_lost = connection_lost  # type: ignore[method-assign]
        return protocol

    def _beat(self) -> None:
        with contextlib.suppress(OSError):  # full for now, or the supervisor is gone
            self._channel.send(Message.ALIVE)
        asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def connection_ended(self) -> None:
        """Report the end of a connection."""
        self._closed += 1
        with contextlib.suppress(OSError):  # full for now, or the supervisor is gone
            self._channel.send(Message.CLOSED + str(self._closed).encode())
            self._closed = 0

    def _stop(self) -> None:
        if not self._state.readiness.draining:
            self.drain()
        self.should_exit = True
        watchdog = threading.Timer(self._late_seconds, os._exit, (1,))
        watchdog.daemon = True
        watchdog.start()


def application(assignment: Assignment) -> FastAPI:
    """Create the application of a worker."""
    settings = assignment.settings
    artifacts = [_unchanged(folder, sha256) for folder, sha256 in assignment.artifacts]
    share(assignment.index)
    peers = Peers(assignment.folder, assignment.index, settings.workers)
    app = create_app(settings, artifacts, peers=peers)
    if assignment.restarted:
        state_of(app).metrics.registry.worker_restarts.inc()
    return app


def _unchanged(folder: Path, sha256: str) -> Artifact:
    artifact = load_artifact(folder)
    if artifact.sha256 != sha256:
        raise ArtifactError(f"{folder} is not the artifact that the service started with")
    return artifact


def main() -> int:
    """Run the supervisor's assignment, in a process started with SIGNALS blocked."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    resources.settle_allocator()
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        assignment = Assignment.model_validate_json(channel.recv(MESSAGE_BYTES))
        logs.configure(assignment.settings.log_level, assignment.settings.log_format)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(held(assignment.folder))
                app = application(assignment)
            except (ModelError, ServiceError, ValueError, OSError) as error:
                channel.send(" ".join(str(error).split()).encode())
                return 1
            server = WorkerServer(app, assignment.settings, channel)
            server.run()
    return end(server)


if __name__ == "__main__":
    sys.exit(main())
