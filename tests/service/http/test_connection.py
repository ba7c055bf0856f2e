"""Requests on a connection: their heads, order and end, what is refused, and HTTP/1.0."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from model.artifact.manifest import Artifact
from service.api.native.attention import maps
from service.api.wire import route
from service.api.wire.route import Part
from service.engines.fake import FakeEngine
from service.http.connection import HEAD_BYTES, HEADERS, PIPELINED, HttpProtocol
from testing import raw_http
from testing.blocking import RawConnection, replies_in
from testing.raw_http import AMBIGUOUS, BODY, CHUNKED, CHUNKS, GET, LARGE, LENGTH, POST
from tests.service.harness import CONFIG, GatedEngine, exchange, listening
from tests.service.http.wire import CLOSE, counted, eventually, everything, refusal, replies

pytestmark = pytest.mark.anyio


def test_a_running_request_is_answered_before_an_invalid_one(artifact: Artifact) -> None:
    engine = GatedEngine()
    with listening(artifact, engine) as (_, port), RawConnection(("127.0.0.1", port)) as connection:
        connection.send(POST + LENGTH + b"\r\n" + BODY)
        while not engine.batches:
            time.sleep(0.001)
        connection.send(POST + CHUNKED + b"\r\nno chunk\r\n")
        replies(port, GET + CLOSE)  # the server has read the other connection before
        engine.let_through()
        good, refused = replies_in(connection.receive_all())
    assert (good.status, refused.status) == (200, 400)
    assert json.loads(good.body)["usage"]["inputs"] == 1


def test_replies_come_in_the_order_of_requests(port: int) -> None:
    ids = [f"number-{n}" for n in range(PIPELINED)]
    asked = b"".join(GET + f"X-Request-Id: {one}\r\n\r\n".encode() for one in ids)
    found = replies(port, asked + GET + CLOSE)
    assert [headers["x-request-id"] for _, headers, _ in found][:-1] == ids


@pytest.mark.parametrize("request_bytes", [POST + LENGTH + b"\r\n" + BODY, GET + b"\r\n"])
def test_a_request_is_freed_without_the_garbage_collector(port: int, request_bytes: bytes) -> None:
    def kept() -> int:
        return sum(type(item) is RequestResponseCycle for item in gc.get_objects())

    everything(port, request_bytes, GET + CLOSE)
    gc.collect()
    gc.disable()
    try:
        before = kept()
        found = replies(port, *[request_bytes] * 20, GET + CLOSE)
        assert len(found) == 21
        assert kept() <= before + 2  # a connection keeps its last requests
    finally:
        gc.enable()


def test_who_sends_too_many_at_once_is_refused_after_the_others(port: int) -> None:
    found = replies(port, (GET + b"\r\n") * 5 * PIPELINED)
    statuses = [status for status, *_ in found]
    assert statuses == [200] * (len(found) - 1) + [400]
    assert PIPELINED < len(found) < 3 * PIPELINED


@pytest.mark.parametrize(
    "head",
    [
        POST + b"Content-Length: 20000000\r\n\r\n",
        POST + CHUNKED + b"\r\n1312d00\r\n",
        POST + b"Expect: 100-continue\r\nContent-Length: 20000000\r\n\r\n",
        GET + b"X: " + b"a" * 40_000 + b"\r\n\r\n",
    ],
)
def test_who_goes_on_sending_still_sees_why_not(port: int, head: bytes) -> None:
    problem = refusal(port, head, bytes(20_000_000))
    assert problem["status"] in (413, 431)


@pytest.mark.parametrize("name", [*raw_http.AMBIGUOUS, "h2c", "websocket", "header"])
def test_nothing_is_logged(port: int, caplog: pytest.LogCaptureFixture, name: str) -> None:
    corpus = raw_http.AMBIGUOUS | raw_http.GOOD | raw_http.LARGE
    with caplog.at_level(logging.DEBUG):
        everything(port, corpus[name] + GET + CLOSE)
    assert [record.name for record in caplog.records if record.name != "asyncio"] == []


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
    eventually(lambda: found() == [value + 1 for value in before])  # counted after it is sent


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


HEAD = b"POST %s HTTP/1.0\r\nContent-Type: application/json\r\n"
ENCODE = HEAD % b"/encode"
INFER = HEAD % b"/v2/models/m/infer"
ATTENTION = HEAD % b"/attention"


def split(received: bytes) -> tuple[bytes, bytes]:
    head, _, body = received.partition(b"\r\n\r\n")
    return head.lower(), body


def posted(head: bytes, content: object) -> bytes:
    body = json.dumps(content).encode()
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


STREAMED = [
    posted(ATTENTION, {"inputs": ["a b"]}),
    posted(
        INFER,
        {
            "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a b"]}],
            "outputs": [{"name": "attention", "parameters": {"binary_data": False}}],
        },
    ),
]


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of any size are sent while they are computed."""
    monkeypatch.setattr(maps, "WHOLE_BYTES", 0)


@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize("request_10", STREAMED, ids=["attention", "KServe"])
def test_a_streamed_reply_ends_with_the_connection(port: int, request_10: bytes) -> None:
    head, body = split(everything(port, request_10))
    assert head.startswith(b"http/1.1 200 ")
    assert b"transfer-encoding" not in head
    assert b"content-length" not in head
    assert b"connection: close" in head
    assert {"results", "outputs"} & json.loads(body).keys()
    newer = b"HTTP/1.1\r\nHost: a\r\nConnection: close"
    head, _ = split(everything(port, request_10.replace(b"HTTP/1.0", newer)))
    assert b"transfer-encoding: chunked" in head


def test_a_reply_of_known_length_keeps_it(port: int) -> None:
    head, body = split(everything(port, ENCODE + LENGTH + b"\r\n" + BODY))
    assert b"content-length: %d" % len(body) in head
    assert json.loads(body)["usage"]["inputs"] == 1


def test_no_interim_reply(port: int) -> None:
    asked = ENCODE + LENGTH + b"Expect: 100-continue\r\n\r\n"
    assert everything(port, asked + BODY).startswith(b"HTTP/1.1 200 ")
    with RawConnection(("127.0.0.1", port), 0.5) as connection:
        connection.send(asked)
        with pytest.raises(TimeoutError):
            connection.receive()


@pytest.mark.usefixtures("streaming")
def test_a_reply_that_fails_is_reset(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A normally closed connection would look like the end of the body."""
    send, sent = route._send, list[Part]()

    async def fail(sending: Send, part: Part) -> None:
        if sent:
            raise ValueError
        sent.append(part)
        await send(sending, part)

    monkeypatch.setattr(route, "_send", fail)
    with pytest.raises(ConnectionResetError):
        everything(port, STREAMED[0])


def test_a_whole_reply_has_the_bytes_of_its_parts(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = b"X-Request-Id: a\r\n"
    asked = POST + LENGTH + mine + b"\r\n" + BODY + GET + mine + CLOSE

    def received() -> bytes:
        return re.sub(rb"(?m)^(date|x-[a-z]+-time): .*", b"", everything(port, asked))

    whole = received()
    monkeypatch.setattr(HttpProtocol, "write_reply", lambda *_: False)
    assert whole == received()
    assert whole.count(b"HTTP/1.1 200 OK\r\n") == 2


HEAD_OF_REPLY = b"content-length: 2\r\n"
DATE = (b"date", b"today")


@pytest.mark.parametrize(
    ("changes", "written"),
    [
        ({}, b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\n{}"),
        ({"method": "HEAD"}, None),
        ({"keep_alive": False}, None),
        ({"default_headers": [DATE, (b"connection", b"close")]}, None),
        ({"flow": SimpleNamespace(write_paused=True)}, None),
        ({"response_started": True}, None),
        ({"disconnected": True}, b""),
    ],
    ids=["written", "HEAD", "closes", "drains", "unread", "begun", "left"],
)
def test_what_needs_more_than_a_write_is_left_to_uvicorn(
    changes: dict[str, Any], written: bytes | None
) -> None:
    sent: list[bytes] = []
    cycle: dict[str, Any] = {
        "disconnected": False,
        "default_headers": [DATE],
        "flow": SimpleNamespace(write_paused=False),
        "response_started": False,
        "keep_alive": True,
        "scope": {"method": changes.pop("method", "POST")},
        "message_event": asyncio.Event(),
        "on_response": lambda: None,
    }
    protocol: Any = SimpleNamespace(
        _running=SimpleNamespace(**cycle | changes), _connection=SimpleNamespace(write=sent.append)
    )
    done = HttpProtocol.write_reply(protocol, 200, HEAD_OF_REPLY, b"{}")
    assert done == (written is not None)
    assert b"".join(sent) == (written or b"")


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb"])
async def test_no_header_begins_another(value: bytes) -> None:
    found = exchange()  # which fails if anything is sent
    for body in (b"{}", None):
        with pytest.raises(ValueError, match="line end"):
            await found.reply(200, [(b"a", value)], body)
    assert found.status == 0
