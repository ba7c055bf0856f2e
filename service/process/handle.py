"""Supervisor's handle of a worker: its process, its channel, and its number of connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time

from service.process.channel import (
    ALIVE,
    BEAT_SECONDS,
    CLOSED,
    CONNECTION,
    DRAIN,
    FINISH,
    LOADED,
    MESSAGE_BYTES,
)

LATE_BEATS = 3
"""Missed heartbeats after which a worker gets connections only if no other worker takes them."""
MISSED_BEATS = 10
"""Missed heartbeats after which a worker counts as hung and is killed. A busy machine delays
heartbeats, and the supervisor's count of them, by fractions of a second."""
LOADING_BEATS = 600
"""Missed heartbeats after which a loading worker, which sends none, is killed."""
BUS_ERROR = ": a file in use, as of a served artifact, was truncated or overwritten in place"


class WorkerHandle:
    """Worker process and the channel to it."""

    def __init__(
        self, index: int, process: asyncio.subprocess.Process, channel: socket.socket
    ) -> None:
        self.process = process
        self.started = time.monotonic()
        self.loaded = False
        self.gone = False
        self.settled = asyncio.Event()
        """Event set once the worker is loaded or gone."""
        self.connections = 0
        self.last_number = 0
        """Sequence number of the last connection handed to the worker."""
        self.index = index
        self._channel = channel
        self._reason = ""
        self._missed = 0
        """Missed heartbeats since the last message, not counted while this process is suspended."""
        loop = asyncio.get_running_loop()
        loop.add_reader(channel, self._receive)
        self._next_beat = loop.call_later(BEAT_SECONDS, self._beat)

    @property
    def serves(self) -> bool:
        """Whether the worker accepts connections."""
        return self.loaded and not self.gone

    @property
    def late(self) -> bool:
        """Whether the worker may hang, as its last messages are overdue."""
        return self._missed >= LATE_BEATS

    def give(self, connection: socket.socket, number: int) -> bool:
        """Hand a connection to the worker, and return whether the channel accepted it."""
        try:
            socket.send_fds(self._channel, [CONNECTION], [connection.fileno()])
        except OSError:
            return False
        self.connections += 1
        self.last_number = number
        return True

    def drain(self) -> None:
        """Make the worker's readiness fail and its connections end; it still accepts new ones."""
        with contextlib.suppress(OSError):
            self._channel.send(DRAIN)

    def finish(self) -> None:
        """Announce that no clients will follow: the worker ends after its pending work.

        Missed heartbeats are no longer counted.

        """
        self._next_beat.cancel()
        try:
            self._channel.send(FINISH)
        except OSError:  # full, or closed
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill the worker.

        `os.kill` replaces `process.kill()`, which first polls the process and thereby consumes the
        exit code that asyncio waits for; asyncio would then report 255 with a warning.
        """
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)

    async def ended(self) -> str:
        """Wait until the worker ends, and return the reason in a line."""
        code = await self.process.wait()
        self._receive()
        how = f"with exit code {code}"
        if code < 0:
            cause = BUS_ERROR if -code == signal.SIGBUS else ""
            how = f"by signal {-code} ({signal.strsignal(-code)}{cause})"
        return self._reason or f"worker {self.index} ended {how}"

    def _receive(self) -> None:
        try:
            while message := self._channel.recv(MESSAGE_BYTES):
                self._read(message)
        except BlockingIOError:
            return
        except OSError:  # the worker was killed
            pass
        if not self.gone:
            self.gone = True
            self._next_beat.cancel()
            self.settled.set()
            asyncio.get_running_loop().remove_reader(self._channel)
            self._channel.close()

    def _beat(self) -> None:
        self._missed += 1
        if self._missed >= (MISSED_BEATS if self.loaded else LOADING_BEATS):
            seconds = self._missed * BEAT_SECONDS
            self._reason = f"worker {self.index} hangs: no heartbeat for {seconds:g} s"
            self.kill()
        else:
            self._next_beat = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def _read(self, message: bytes) -> None:
        self._missed = 0
        if message == ALIVE:
            return
        if message == LOADED:
            self.loaded = True
            self.settled.set()
        elif message.startswith(CLOSED):
            self.connections -= int(message.removeprefix(CLOSED))
        else:
            self._reason = message.decode()
