"""HTTP client without an event loop, and complete or incomplete replies to raw bytes."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from testing.blocking import RawConnection, Session, ask, exchange, probe, replies_in
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


def test_a_probe_is_none_without_a_complete_reply() -> None:
    with replying(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok") as port:
        assert probe(port, "/") is None
    assert probe(port, "/") is None, "nobody listens"
    with replying(b"HTTP/1.1 503 Starting\r\nContent-Length: 2\r\n\r\nok") as port:
        reply = probe(port, "/")
    assert reply is not None
    assert (reply.status, reply.body) == (503, b"ok")


@contextlib.contextmanager
def replying(content: bytes | None) -> Iterator[int]:
    """Run a server that writes some bytes and closes the connection; with None it does neither."""
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


def test_replies_of_one_connection_are_read_in_turn() -> None:
    first = b"HTTP/1.1 200 OK\r\nX-A: B c\r\nx-a: \xe9\r\nContent-Length: 2\r\n\r\nok"
    second = b"HTTP/1.1 204 No Content\r\nX-Last: 1\r\n\r\n"
    with replying(first + second) as port, RawConnection(("127.0.0.1", port)) as connection:
        connection.send(b"GET / HTTP/1.1\r\n\r\n" * 2)
        one, other = connection.receive(), connection.receive()
        with pytest.raises(ConnectionError):
            connection.receive()
    assert (one.status, one.body) == (200, b"ok")
    assert one.headers == [("x-a", "B c"), ("x-a", "é"), ("content-length", "2")]
    assert (other.status, other.headers, other.body) == (204, [("x-last", "1")], b"")


def test_all_bytes_of_a_connection_are_its_replies() -> None:
    sent = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 404 No\r\nX: 1\r\n\r\nrest"
    with replying(sent) as port, RawConnection(("127.0.0.1", port)) as connection:
        connection.send(b"GET / HTTP/1.1\r\n\r\n")
        assert connection.receive_all() == sent
    assert [(reply.status, reply.body) for reply in replies_in(sent)] == [
        (200, b"ok"),
        (404, b"rest"),
    ]
    assert replies_in(b"") == []


def test_a_reply_to_head_has_no_body() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
    with replying(reply * 2) as port, RawConnection(("127.0.0.1", port)) as connection:
        connection.send(b"HEAD / HTTP/1.1\r\n\r\n")
        assert [connection.receive().body for _ in range(2)] == [b"", b""]


def test_a_server_that_reads_no_further_is_heard() -> None:
    reply = b"HTTP/1.1 431 Large\r\nContent-Length: 0\r\n\r\n"
    with replying(reply) as port, RawConnection(("127.0.0.1", port)) as connection:
        connection.send(b"GET / HTTP/1.1\r\n\r\n")
        assert connection.receive().status == 431
        for _ in range(3):
            connection.send(b"x" * 2**22)
