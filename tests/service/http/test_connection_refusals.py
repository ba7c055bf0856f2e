"""Refusals before a request is complete: counted, and timed from the first byte."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.models.state import state_of
from testing.blocking import RawConnection
from testing.raw_http import AMBIGUOUS, CHUNKED, GET, LARGE, POST
from tests.service.harness import CONFIG, listening
from tests.service.http.wire import refusal

SECONDS = 0.4
"""Client timeout of the server."""


@pytest.fixture(scope="module")
def served(artifact: Artifact) -> Iterator[tuple[FastAPI, int]]:
    with listening(artifact, FakeEngine(CONFIG), client_timeout_seconds=SECONDS) as served:
        yield served


@contextlib.contextmanager
def kept_open(port: int) -> Iterator[RawConnection]:
    """Open a connection on which one request was answered."""
    with RawConnection(("127.0.0.1", port)) as connection:
        connection.send(GET + b"\r\n")
        connection.receive()
        yield connection


def counted(app: FastAPI, name: str, **labels: str) -> float:
    """Return the current value of a metric."""
    return state_of(app).metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.mark.parametrize(
    ("status", "reason", "route", "part"),
    [
        (400, "invalid_request", "unmatched", AMBIGUOUS["TLS"]),
        (400, "invalid_request", "/health/live", AMBIGUOUS["no host"]),
        (400, "invalid_request", "/encode", POST + CHUNKED + b"\r\nno chunk\r\n"),
        (408, "request_timeout", "/health/live", GET),
        (431, "head_too_large", "/health/live", LARGE["header"]),
    ],
    ids=["no HTTP", "ambiguous", "within a body", "late", "too large"],
)
def test_each_is_counted_once(
    served: tuple[FastAPI, int], status: int, reason: str, route: str, part: bytes
) -> None:
    app, port = served

    def found() -> list[float]:
        return [
            counted(app, "headscope_requests_total", route=route, status=str(status)),
            counted(app, "headscope_refused_total", route=route, reason=reason),
        ]

    before = found()
    assert refusal(port, part)["status"] == status
    deadline = time.monotonic() + 60
    while found() == before and time.monotonic() < deadline:  # counted after it is sent
        time.sleep(0.001)
    assert found() == [value + 1 for value in before]


def test_the_time_is_that_of_the_head(served: tuple[FastAPI, int]) -> None:
    with kept_open(served[1]) as connection:
        connection.send(GET)
        reply = connection.receive()
    assert reply.status == 408
    assert int(reply.header("x-total-time")) >= 1000 * SECONDS - 1


def test_an_idle_connection_is_no_part_of_the_time(served: tuple[FastAPI, int]) -> None:
    with kept_open(served[1]) as connection:
        time.sleep(2 * SECONDS)
        began = time.monotonic()
        connection.send(AMBIGUOUS["TLS"])
        reply = connection.receive()
        most = 1000 * (time.monotonic() - began)
    assert reply.status == 400
    assert int(reply.header("x-total-time")) <= most + 1
