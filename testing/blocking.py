"""The same client for code without an event loop, and an exchange of raw bytes."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from typing import Literal

from testing.client import HANG_SECONDS, Reply

RAW_SECONDS = 20.0
"""Far beyond the time that a server under test is told to give a client."""


class Session:
    """A connection that is kept from one request to the next, and made again where it ended."""

    def __init__(self, port: int, seconds: float = HANG_SECONDS) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(
        self, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """The reply to a POST of a body as JSON, or to a GET without one.

        Raises:
            OSError: nobody listens, or the reply takes too long.
            http.client.HTTPException: the reply is incomplete, or no HTTP.

        """
        sent = dict(headers or {})
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            sent["content-type"] = "application/json"
        self._connection.request("GET" if body is None else "POST", path, content, sent)
        found = self._connection.getresponse()
        lines = [f"HTTP/1.1 {found.status}", *(f"{k}: {v}" for k, v in found.getheaders()), "", ""]
        return Reply(found.status, "\r\n".join(lines).lower().encode(), found.read())


def ask(port: int, path: str, body: object = None, seconds: float = HANG_SECONDS) -> Reply:
    """The reply to one request over a connection of its own."""
    with Session(port, seconds) as session:
        return session.ask(path, body)


def exchange(
    port: int, data: bytes, seconds: float = RAW_SECONDS
) -> int | Literal["closed", "truncated", "hang"]:
    """The status of the first reply to raw bytes, or why there is no whole one."""
    method = "HEAD" if data.lstrip(b"\r\n").startswith(b"HEAD ") else "GET"
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        try:
            connection.sendall(data)
        except TimeoutError:
            return "hang"
        except OSError:  # it was refused before it was sent
            pass
        reply = http.client.HTTPResponse(connection, method=method)
        try:
            reply.begin()
            reply.read()
        except TimeoutError:
            return "hang"
        except ConnectionError:
            return "closed"
        except http.client.HTTPException:
            return "truncated"
        return reply.status
