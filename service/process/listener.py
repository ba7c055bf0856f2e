"""The port of a service: bound at once, opened when it can serve."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

from service.system import logs

BACKLOG = 2048
MOST_AT_ONCE = 64
"""Connections accepted before anything else gets a turn."""
RETRY_SECONDS = 0.01
EXHAUSTED_SECONDS = 1.0
"""Until it is tried again when the system had no descriptor, or no memory, for a connection."""
EXHAUSTED = "no connection can be accepted for now, and those that come wait: %s"


@contextlib.contextmanager
def bound(host: str, *ports: int | None) -> Iterator[list[socket.socket]]:
    """Sockets on every address of a host, on each port that is given; they do not listen yet.

    Raises:
        OSError: the host is unknown, or a port is taken; the message names which.

    """
    with contextlib.ExitStack() as stack:
        yield [one for port in ports if port is not None for one in _bound(host, port, stack)]


def _bound(host: str, port: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Those on one port, which the stack closes."""
    sockets: list[socket.socket] = []
    addresses = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    for family, kind, protocol, _, address in dict.fromkeys(addresses):
        listener = stack.enter_context(socket.socket(family, kind, protocol))
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        chosen = sockets[0].getsockname()[1] if sockets else port
        try:
            listener.bind((address[0], chosen, *address[2:]))
        except OSError as error:
            why = f"port {chosen} of {address[0]} cannot be had: {error.strerror}"
            raise OSError(error.errno, why) from None
        sockets.append(listener)
    return sockets


class Listener:
    """Accepts at one socket, never more than is taken in."""

    def __init__(self, listener: socket.socket, give: Callable[[socket.socket], bool]) -> None:
        """Open it.

        Args:
            listener: a bound socket.
            give: takes a connection in, or cannot now.

        """
        self.port = int(listener.getsockname()[1])
        self._socket = listener
        self._give = give
        self._held: socket.socket | None = None
        """Accepted, and not yet taken in."""
        self._exhausted = logs.Occasional()
        listener.listen(BACKLOG)
        self._watch()

    def close(self) -> None:
        """Take in who has come already, and no one else."""
        self._accept()
        if self._retry:
            self._retry.cancel()
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _watch(self) -> None:
        self._retry: asyncio.TimerHandle | None = None
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                connection = self._held or self._socket.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._exhausted.error(EXHAUSTED, error.strerror)
                self._pause(EXHAUSTED_SECONDS)
                return
            if not self._give(connection):
                self._held = connection
                self._pause(RETRY_SECONDS)
                return
            self._held = None
            connection.close()

    def _pause(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        self._retry = loop.call_later(seconds, self._watch)
