"""The client without an event loop, and replies to raw bytes that are whole or not."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from testing.blocking import Session, ask, exchange
from tests.testing.servers import answering


def test_a_session_keeps_its_connection() -> None:
    with (
        answering(lambda path, body: (201, {"X-A": "B"}, body)) as asked,
        Session(asked.port) as session,
    ):
        replies = [session.ask("/a", {"n": n}, {"x-request-id": "i"}) for n in range(3)]
    assert [reply.json() for reply in replies] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert replies[0].status == 201
    assert replies[0].header("x-a") == "b"
    assert asked.requests[0][1]["x-request-id"] == "i"
    assert asked.requests[0][1]["content-type"] == "application/json"
    assert asked.connections == 1


def test_one_request() -> None:
    with answering(lambda path, _: (200, {}, json.dumps(path).encode())) as asked:
        assert ask(asked.port, "/health/live").json() == "/health/live"


@contextlib.contextmanager
def replying(content: bytes | None) -> Iterator[int]:
    """A server that writes this and ends the connection; with None it does neither."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                if content is None:
                    done.wait(20)
                else:
                    connection.sendall(content)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        done.set()
        thread.join()


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        (b"HTTP/1.1 431 Large\r\nContent-Length: 2\r\n\r\nok", 431),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", "truncated"),
        (b"nonsense\r\n\r\n", "truncated"),
        (b"", "closed"),
        (None, "hang"),
    ],
)
def test_what_raw_bytes_are_answered(content: bytes | None, outcome: int | str) -> None:
    with replying(content) as port:
        seconds = 0.2 if content is None else 20
        assert exchange(port, b"GET / HTTP/1.1\r\n\r\n", seconds) == outcome
