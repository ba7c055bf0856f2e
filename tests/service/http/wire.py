"""Raw bytes to a server, and its replies up to the end of the connection."""

from __future__ import annotations

import http.client
import io
import json
import socket
from typing import Any

from tests.service.harness import PROBLEM_MEMBERS

CLOSE = b"Connection: close\r\n\r\n"


class Received(io.BytesIO):
    """Consecutive replies, as a socket for http.client."""

    def makefile(self, _: str) -> Received:
        return self

    def close(self) -> None:
        """Stay open: more replies may follow."""


def everything(port: int, *parts: bytes) -> bytes:
    """Return all bytes that the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        for part in parts:
            connection.sendall(part)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def replies(port: int, *parts: bytes) -> list[tuple[int, http.client.HTTPMessage, bytes]]:
    """Return status, headers and body of each reply until the server closes the connection."""
    received = Received(everything(port, *parts))
    found = []
    while received.tell() < len(received.getvalue()):
        reply = http.client.HTTPResponse(received)  # type: ignore[arg-type]
        reply.begin()
        found.append((reply.status, reply.msg, reply.read()))
    return found


def refusal(port: int, *parts: bytes) -> dict[str, Any]:
    """Return the only reply, a problem that closes the connection."""
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
