"""The connection to a collector of traces, which may be anything that listens there.

Of a reply only the status counts. Its body is not read, however long it is, and a head that does
not end, or that is preceded by `100 Continue` for ever, ends with the connection.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from http.client import HTTPConnection
from typing import Any

import requests
from requests.adapters import HTTPAdapter


def bounded_session(head_seconds: float) -> requests.Session:
    """A session whose replies have a status and headers only.

    Args:
        head_seconds: how long the head of a reply may take.

    """
    session = _HeadsOnly()
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Adapter(head_seconds))
    return session


class _HeadsOnly(requests.Session):
    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        response = super().request(*args, **kwargs | {"stream": True})
        response.close()
        return response


class _Adapter(HTTPAdapter):
    """Connects by connections that are cut."""

    def __init__(self, head_seconds: float) -> None:
        super().__init__()
        self._head_seconds = head_seconds

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        """The pool of connections to a host, or to the proxy before it."""
        pool = super().get_connection_with_tls_context(*args, **kwargs)
        if not issubclass(pool.ConnectionCls, _Cut):
            both = (_Cut, pool.ConnectionCls)
            pool.ConnectionCls = type("_Connection", both, {"head_seconds": self._head_seconds})
        return pool


class _Cut(HTTPConnection):
    """A connection that is cut while it still waits for the end of a head."""

    head_seconds: float

    def getresponse(self) -> Any:
        """Status and headers; the body is for whoever reads on.

        Raises:
            TimeoutError: they took too long.

        """
        late = threading.Event()
        timer = threading.Timer(self.head_seconds, _cut, [self.sock, late])
        timer.daemon = True
        timer.start()
        try:
            response = super().getresponse()
        finally:
            timer.cancel()
        if late.is_set():  # half a head reads like a whole one once the connection has ended
            response.close()
            raise TimeoutError
        return response


def _cut(connection: socket.socket, late: threading.Event) -> None:
    """Ends a connection for both directions; its peer is told as soon as it is closed.

    Without a reset at the close (`SO_LINGER` of 0 s) a peer whose window is full would learn of it
    from the system's own time alone: 60 s on Linux.
    """
    late.set()
    with contextlib.suppress(OSError):  # it has ended just now
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # TLS would first say goodbye
