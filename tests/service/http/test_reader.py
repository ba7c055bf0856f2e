"""Wrong, ambiguous and large requests that the reader accepts or refuses."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest

from service.http.reader import HEAD_BYTES, HEADERS
from testing import raw_http
from testing.raw_http import CHUNKED, CHUNKS, GET, POST
from tests.service.http.wire import CLOSE, refusal, replies


@pytest.mark.parametrize("name", raw_http.GOOD)
def test_good_ones_are_answered_and_the_connection_goes_on(port: int, name: str) -> None:
    good = raw_http.GOOD[name]
    asked = good if name == "1.0" else good + GET + CLOSE
    found = replies(port, asked)
    assert [status for status, *_ in found] == [200] * (1 if name == "1.0" else 2)
    assert found[-1][1]["connection"] == "close"
    first = json.loads(found[0][2])
    assert "results" in first if good.lstrip().startswith(b"POST") else first == {"status": "live"}


def test_an_upgrade_of_a_request_with_a_body_reads_the_body(port: int) -> None:
    plain, upgraded = (
        replies(port, raw_http.GOOD[name] + GET + CLOSE)[0][2]
        for name in ("length", "h2c with a body")
    )
    assert plain == upgraded


@pytest.mark.parametrize("name", raw_http.AMBIGUOUS)
def test_ambiguous_ones_are_refused(port: int, name: str) -> None:
    problem = refusal(port, raw_http.AMBIGUOUS[name])
    assert (problem["status"], problem["type"]) == (400, "/problems/invalid-request")


@pytest.mark.parametrize("name", raw_http.LARGE)
def test_large_heads_are_refused(port: int, name: str) -> None:
    problem = refusal(port, raw_http.LARGE[name])
    assert (problem["status"], problem["type"]) == (431, "/problems/head-too-large")


def test_a_head_of_just_the_limit_is_taken(port: int) -> None:
    def head(size: int, lines: int) -> bytes:
        start = GET + b"X: a\r\n" * (lines - 3) + b"Connection: close\r\nX: "
        return start + b"a" * (size - len(start) - 4) + b"\r\n\r\n"

    assert [status for status, *_ in replies(port, head(HEAD_BYTES, 3))] == [200]
    assert [status for status, *_ in replies(port, head(2000, HEADERS))] == [200]
    assert refusal(port, head(HEAD_BYTES + 200, 3))["status"] == 431
    assert refusal(port, head(2000, HEADERS + 1))["status"] == 431


def test_single_bytes_are_counted_too(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(GET + b"X: ")
        connection.settimeout(0.001)
        answered = b""
        for _ in range(2 * HEAD_BYTES):
            connection.send(b"a")
            with contextlib.suppress(TimeoutError):
                answered = connection.recv(100) if _ % 4096 == 0 else b""
            if answered:
                break
        assert answered.startswith(b"HTTP/1.1 431")


def test_trailers_are_not_headers(port: int) -> None:
    trailers = b"X-Request-Id: trailer\r\nAccept: application/vnd.safetensors\r\n\r\n"
    asked = POST + CHUNKED + b"\r\n" + CHUNKS[:-2] + trailers + GET + CLOSE
    (status, headers, body), _ = replies(port, asked)
    assert status == 200
    assert headers["x-request-id"] != "trailer"
    assert json.loads(body)["usage"]["inputs"] == 1
