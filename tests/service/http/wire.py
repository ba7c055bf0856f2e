"""Raw bytes to a server, and its replies up to the end of the connection."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from service.models.state import state_of
from testing.blocking import RawConnection, replies_in
from tests.service.harness import PROBLEM_MEMBERS

CLOSE = b"Connection: close\r\n\r\n"


def everything(port: int, *parts: bytes) -> bytes:
    """Return all bytes that the server sends until it closes the connection."""
    with RawConnection(("127.0.0.1", port)) as connection:
        for part in parts:
            connection.send(part)
        return connection.receive_all()


def replies(port: int, *parts: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Return status, headers and body of each reply until the server closes the connection."""
    found = replies_in(everything(port, *parts))
    return [(reply.status, dict(reply.headers), reply.body) for reply in found]


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


def counted(app: FastAPI, name: str, **labels: str) -> float:
    """Return the current value of a metric."""
    return state_of(app).metrics.registry.get_sample_value(name, labels) or 0.0


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
