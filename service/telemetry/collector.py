"""HTTP session to a trace collector that is robust to any server at its address.

Only the status of a reply is used. The body is never read. The connection is cut if the head does
not end in time, for example after endless `100 Continue` replies.
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
    """Return a session that reads only the status and headers of replies."""
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
    """Adapter whose connections are cut when the head of a reply takes too long."""

    def __init__(self, head_seconds: float) -> None:
        super().__init__()
        self._head_seconds = head_seconds

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        """Return the pool of connections to a host or its proxy."""
        pool = super().get_connection_with_tls_context(*args, **kwargs)
        if not issubclass(pool.ConnectionCls, _Cut):
            both = (_Cut, pool.ConnectionCls)
            pool.ConnectionCls = type("_Connection", both, {"head_seconds": self._head_seconds})
        return pool


class _Cut(HTTPConnection):
    """Connection that is cut when the head of a reply takes too long."""

    head_seconds: float

    def getresponse(self) -> Any:
        """Read the status and headers of the reply, without the body."""
        late = threading.Event()
        timer = threading.Timer(self.head_seconds, _cut, [self.sock, late])
        timer.daemon = True
        timer.start()
        try:
            response = super().getresponse()
        finally:
            timer.cancel()
        if late.is_set():  # once the connection is cut, half a head reads like a whole one
            response.close()
            raise TimeoutError
        return response


def _cut(connection: socket.socket, late: threading.Event) -> None:
    """Shut a connection down in both directions, with a reset when it is closed.

    Without the reset (`SO_LINGER` of 0 s), a peer with a full window would not notice the close
    before the system's timeout, 60 s on Linux.
    """
    late.set()
    with contextlib.suppress(OSError):  # the connection has just ended
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # skips TLS's closing handshake
