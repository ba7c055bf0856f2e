"""A worker as its supervisor sees it: a process, a channel, and the connections that it holds."""

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
"""A worker that has missed so many gets connections only if the others take none."""
MISSED_BEATS = 10
"""A worker that has missed so many hangs, and is killed. A busy machine delays a beat by fractions
of a second, and the supervisor, which counts them, as well."""
LOADING_BEATS = 600
"""As many while it is loading, when it sends none."""


class WorkerHandle:
    """A worker process and the channel to it."""

    def __init__(
        self, index: int, process: asyncio.subprocess.Process, channel: socket.socket
    ) -> None:
        self.process = process
        self.started = time.monotonic()
        self.loaded = False
        self.gone = False
        self.settled = asyncio.Event()
        """It is loaded, or gone."""
        self.connections = 0
        self.last_number = 0
        """Sequence number of the last connection that it was given."""
        self.index = index
        self._channel = channel
        self._reason = ""
        self._missed = 0
        """Beats since it was last heard of; none while this process itself stands still."""
        loop = asyncio.get_running_loop()
        loop.add_reader(channel, self._receive)
        self._next_beat = loop.call_later(BEAT_SECONDS, self._beat)

    @property
    def serves(self) -> bool:
        """Whether connections may be given to it."""
        return self.loaded and not self.gone

    @property
    def late(self) -> bool:
        """Whether it may hang: nothing was heard of it lately."""
        return self._missed >= LATE_BEATS

    def give(self, connection: socket.socket, number: int) -> bool:
        """Hand a connection over, if the worker has room for one now."""
        try:
            socket.send_fds(self._channel, [CONNECTION], [connection.fileno()])
        except OSError:
            return False
        self.connections += 1
        self.last_number = number
        return True

    def drain(self) -> None:
        """Have its readiness fail and its connections end; it still takes new ones."""
        with contextlib.suppress(OSError):
            self._channel.send(DRAIN)

    def finish(self) -> None:
        """No more clients will come; it ends when what it has is done, silent or not."""
        self._next_beat.cancel()
        try:
            self._channel.send(FINISH)
        except OSError:  # full, or closed
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """End it now.

        By the system's own call: `process.kill()` first looks whether the process has ended, and
        thereby takes the exit code that asyncio waits for, which then reports 255 with a warning.
        """
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)

    async def ended(self) -> str:
        """Wait for its end; why that came, in a line."""
        code = await self.process.wait()
        self._receive()
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return self._reason or f"worker {self.index} ended {how}"

    def _receive(self) -> None:
        try:
            while message := self._channel.recv(MESSAGE_BYTES):
                self._read(message)
        except BlockingIOError:
            return
        except OSError:  # it was killed
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
            self._reason = f"worker {self.index} hangs: nothing was heard of it for {seconds:g} s"
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
