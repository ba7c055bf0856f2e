"""HTTP client for code without an event loop, and a connection for raw bytes."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import socket
from collections.abc import Mapping
from typing import Literal, cast

from testing.client import HANG_SECONDS, Reply

RAW_SECONDS = 60.0
"""Seconds to wait for raw bytes: far more than any timeout set in a server under test."""


class Session:
    """Connection that is reused between requests, and reopened after it ended."""

    def __init__(
        self, port: int, seconds: float = HANG_SECONDS, address: str = "127.0.0.1"
    ) -> None:
        self._connection = http.client.HTTPConnection(address, port, timeout=seconds)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(
        self, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Return the reply to a POST of a body (JSON or raw bytes), or to a GET without a body.

        Raises:
            OSError: the port is closed, or the reply takes too long.
            http.client.HTTPException: the reply is incomplete or is not HTTP.

        """
        sent = dict(headers or {})
        content = None
        if body is not None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent["content-type"] = "application/json"
        self._connection.request("GET" if body is None else "POST", path, content, sent)
        return _whole(self._connection.getresponse())


def ask(port: int, path: str, body: object = None, seconds: float = HANG_SECONDS) -> Reply:
    """Return the reply to one request over a connection of its own."""
    with Session(port, seconds) as session:
        return session.ask(path, body)


def probe(
    port: int,
    path: str,
    body: object = None,
    seconds: float = HANG_SECONDS,
    address: str = "127.0.0.1",
) -> Reply | None:
    """Return the reply to one request; None without a complete reply, as while a server starts."""
    with (
        contextlib.suppress(OSError, http.client.HTTPException),
        Session(port, seconds, address) as session,
    ):
        return session.ask(path, body)
    return None


class RawConnection:
    """Connection that sends any bytes, and reads their replies one after another."""

    def __init__(
        self, address: tuple[str, int], seconds: float = RAW_SECONDS, receive_bytes: int = 0
    ) -> None:
        """Connect, with a receive buffer of some bytes, or the system's by default."""
        self._socket = socket.socket()
        if receive_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(seconds)
        self._socket.connect(address)
        self._file = self._socket.makefile("rb", buffering=0)
        self._reader = _Reader(self._file)
        self._method = "GET"

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes, until the server ends the connection if it refuses them.

        Raises:
            TimeoutError: the server neither reads on nor ends the connection.

        """
        self._method = "HEAD" if data.lstrip(b"\r\n").startswith(b"HEAD ") else "GET"
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(data)

    def receive(self) -> Reply:
        """Return the next reply to the bytes sent.

        Raises:
            TimeoutError: the reply takes too long.
            ConnectionError: the connection ended before the reply.
            http.client.HTTPException: the reply is incomplete or is not HTTP.

        """
        return _next_reply(self._reader, self._method)

    def receive_all(self) -> bytes:
        """Return all bytes that follow, up to the end of the connection.

        Raises:
            TimeoutError: the server does not end the connection.
            ConnectionError: the server resets the connection.

        """
        return self._reader.read()


def replies_in(data: bytes) -> list[Reply]:
    """Return consecutive replies.

    Raises:
        http.client.HTTPException: a reply is incomplete or is not HTTP.

    """
    reader = _Reader(io.BytesIO(data))
    replies = []
    while reader.peek():
        replies.append(_next_reply(reader))
    return replies


class _Reader(io.BufferedReader):
    """Buffer of a connection's bytes that stands in for the socket of an `HTTPResponse`."""

    def makefile(self, _mode: str) -> _Reader:
        return self

    def close(self) -> None:
        """Stay open: later replies are in the same buffer."""


def _next_reply(reader: _Reader, method: str = "GET") -> Reply:
    response = http.client.HTTPResponse(cast(socket.socket, reader), method=method)
    response.begin()
    return _whole(response)


def _whole(response: http.client.HTTPResponse) -> Reply:
    lines = [f"HTTP/1.1 {response.status}", *map(": ".join, response.getheaders()), "", ""]
    return Reply(response.status, "\r\n".join(lines).encode("latin-1"), response.read())


Outcome = int | Literal["closed", "truncated", "hang"]
"""Status of a reply, or why there was none: `truncated` ended too early or is not HTTP."""


def exchange(port: int, data: bytes, seconds: float = RAW_SECONDS) -> Outcome:
    """Return the status of the first reply to raw bytes, or why no whole reply came."""
    with RawConnection(("127.0.0.1", port), seconds) as connection:
        try:
            connection.send(data)
            return connection.receive().status
        except TimeoutError:
            return "hang"
        except ConnectionError:
            return "closed"
        except http.client.HTTPException:
            return "truncated"
