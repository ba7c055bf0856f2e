"""A collector whose reply does not end costs neither memory nor a thread."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterable, Iterator

import pytest
import requests

from service.telemetry.tracing import bounded_session

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\n"
MEBIBYTE = b"x" * 2**20
SPANS = b"spans"


def for_ever(first: bytes, again: bytes) -> Iterable[bytes]:
    return itertools.chain([first], itertools.repeat(again))


BODIES: dict[str, Callable[[], Iterable[bytes]]] = {
    "no length": lambda: for_ever(HEAD + b"\r\n", MEBIBYTE),
    "chunks": lambda: for_ever(
        HEAD + b"transfer-encoding: chunked\r\n\r\n", b"100000\r\n" + MEBIBYTE + b"\r\n"
    ),
    "a length": lambda: for_ever(HEAD + b"content-length: %d\r\n\r\n" % 2**50, MEBIBYTE),
    "one that does not come": lambda: [HEAD + b"content-length: 9\r\n\r\n"],
}
HEADS: dict[str, Callable[[], Iterable[bytes]]] = {
    "continue": lambda: itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a line": lambda: for_ever(b"HTTP/1.1 200 OK\r\nx: ", b""),
    "nothing": lambda: for_ever(b"", b""),
}


class Sent:
    """Bytes that a server sent and the client took, and whether the client has disconnected."""

    def __init__(self) -> None:
        self.bytes = 0
        self.left = threading.Event()


@contextlib.contextmanager
def sending(reply: Iterable[bytes]) -> Iterator[tuple[str, Sent]]:
    """Run a server that answers one request with the parts of a reply, until its client leaves."""
    sent = Sent()

    def serve() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(ConnectionError):
            received = b""
            while not received.endswith(SPANS):  # headers and body come in segments of their own
                received += connection.recv(65536)
            for part in reply:
                connection.sendall(part)
                sent.bytes += len(part)
                if not part:  # a byte at a time, until the client disconnects
                    connection.sendall(b"x")
                    sent.left.wait(0.05)
            connection.recv(1)
        sent.left.set()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", sent
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_not_read(name: str) -> None:
    """The system buffers some of it on both sides; the client reads almost nothing."""
    with sending(BODIES[name]()) as (url, sent), bounded_session(60) as session:
        reply = session.request("POST", url, data=SPANS, timeout=60)
        assert reply.status_code == 200
        assert sent.left.wait(60)
    assert sent.bytes < 64 * 2**20


@pytest.mark.parametrize("name", HEADS)
def test_a_head_that_does_not_end_is_cut(name: str) -> None:
    with sending(HEADS[name]()) as (url, sent), bounded_session(0.2) as session:
        with pytest.raises((requests.ConnectionError, requests.ReadTimeout)):
            session.request("POST", url, data=SPANS, timeout=60)
        assert sent.left.wait(30)  # not the 60 s after which Linux forgets a connection by itself


def test_a_reply_in_time_is_left_alone() -> None:
    complete = [HEAD + b"content-length: 2\r\n\r\nok"]
    with sending(complete) as (url, _), bounded_session(600) as session:
        reply = session.request("POST", url, data=SPANS, timeout=60)
        assert (reply.ok, reply.headers["content-length"]) == (True, "2")
