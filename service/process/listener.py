"""Listening sockets of a service, bound at the start and opened once the service is loaded."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

from service.system import logs

BACKLOG = 2048
MOST_AT_ONCE = 64
"""Maximum number of connections accepted in one turn of the event loop."""
RETRY_SECONDS = 0.01
EXHAUSTED_SECONDS = 1.0
"""Pause after the system had no descriptor or memory for a connection."""
EXHAUSTED = "cannot accept connections for now; new connections wait: %s"


@contextlib.contextmanager
def bound(host: str, *ports: int | None) -> Iterator[list[socket.socket]]:
    """Bind sockets to every address of a host on each given port, without listening yet.

    Raises:
        OSError: the host is unknown, or a port is taken; the message names the port.

    """
    with contextlib.ExitStack() as stack:
        given = [port for port in ports if port is not None]
        yield [listener for port in given for listener in _bound(host, port, stack)]


def _bound(host: str, port: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Bind sockets to every address of a host on one port; the stack closes them."""
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
            why = f"cannot bind port {chosen} of {address[0]}: {error.strerror}"
            raise OSError(error.errno, why) from None
        sockets.append(listener)
    return sockets


class Listener:
    """Acceptor of connections on one socket, with backpressure."""

    def __init__(self, listener: socket.socket, give: Callable[[socket.socket], bool]) -> None:
        """Listen on a bound socket; `give` takes a connection, and returns whether it could."""
        self.port = int(listener.getsockname()[1])
        self._socket = listener
        self._give = give
        self._held: socket.socket | None = None
        """Accepted connection that `give` could not take yet."""
        self._exhausted = logs.Occasional()
        listener.listen(BACKLOG)
        self._watch()

    def close(self) -> None:
        """Accept the connections in the backlog, and stop listening."""
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
