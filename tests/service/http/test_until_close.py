"""HTTP/1.0: no chunks, no interim reply, and an end that differs from a failure."""

from __future__ import annotations

import json

import pytest
from starlette.types import Send

from service.api.native.attention import maps
from service.api.wire import route
from service.api.wire.route import Part
from testing.blocking import RawConnection
from testing.raw_http import BODY, LENGTH
from tests.service.http.wire import everything

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


@pytest.fixture(autouse=True)
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of any size are sent while they are computed."""
    monkeypatch.setattr(maps, "WHOLE_BYTES", 0)


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
