"""Bytes to a server and the replies that come back, up to the end of the connection."""

from __future__ import annotations

import http.client
import io
import json
import socket
from typing import Any

from tests.service.harness import PROBLEM_MEMBERS

CLOSE = b"Connection: close\r\n\r\n"


class Received(io.BytesIO):
    """Replies in a row, as a socket that http.client reads one after the other."""

    def makefile(self, _: str) -> Received:
        return self

    def close(self) -> None:
        """Only one of the replies has ended."""


def everything(port: int, *parts: bytes) -> bytes:
    """All that the server sends until it ends the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        for part in parts:
            connection.sendall(part)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def replies(port: int, *parts: bytes) -> list[tuple[int, http.client.HTTPMessage, bytes]]:
    """Status, headers and body of all that the server sends until it ends the connection."""
    received = Received(everything(port, *parts))
    found = []
    while received.tell() < len(received.getvalue()):
        reply = http.client.HTTPResponse(received)  # type: ignore[arg-type]
        reply.begin()
        found.append((reply.status, reply.msg, reply.read()))
    return found


def refusal(port: int, *parts: bytes) -> dict[str, Any]:
    """The one reply, a problem that ends the connection."""
    ((status, headers, body),) = replies(port, *parts)
    problem: dict[str, Any] = json.loads(body)
    assert problem.keys() == PROBLEM_MEMBERS
    assert problem["status"] == status
    assert problem["request_id"] == headers["x-request-id"]
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    assert headers["date"]
    assert headers["x-total-time"].isdecimal()
    return problem
