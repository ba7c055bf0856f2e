"""deploy/haproxy/haproxy.cfg in this machine's HAProxy, before faulty replicas."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from service.process.server import KEEP_ALIVE_SECONDS
from service.settings import Settings
from testing.haproxy import CONFIGURATION, Balancer, balancing, haproxy
from testing.process import free_port

pytestmark = pytest.mark.skipif(haproxy() is None, reason="no haproxy: apt-get install haproxy")
HOSTS = ("127.0.0.2", "127.0.0.3")
LARGEST_REPEATED = 100_000
"""Maximum bytes of a body that is resent when its replica is lost."""
UNLIKELY = {"/busy": 429, "/down": 503, "/failed": 500}
BODY = b'{"detail":"as the replica wrote it"}'


class Replica(ThreadingHTTPServer):
    """Replica that records its requests, and treats each as its path says."""

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        super().__init__((host, port), _Handler)
        self.is_ready = True
        self.asked: list[tuple[str, str, int]] = []
        """Method, path and body size of each request."""
        self.left = threading.Event()
        """Event that is set when the client of /slow has disconnected."""

    def handle_error(self, *_: object) -> None:
        """Ignore errors: the balancer may close connections at any time."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Replica

    def do_GET(self) -> None:
        if self.path == "/health/ready":
            self.answer(200 if self.server.is_ready else 503)
        else:
            self.note()

    def do_POST(self) -> None:
        self.note()

    def do_PUT(self) -> None:
        self.note()

    def note(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.asked.append((self.command, self.path, len(body)))
        if self.path == "/lost":
            self.close_connection = True
        elif self.path == "/slow":
            with contextlib.suppress(ConnectionResetError):
                assert self.rfile.read(1) == b""
            self.server.left.set()
        elif self.path == "/half":
            self.send_response(200)
            self.send_header("content-length", "100")
            self.end_headers()
            self.close_connection = True
        else:
            self.answer(UNLIKELY.get(self.path, 200))

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("retry-after", "7")
        self.send_header("content-length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def replicas_at(port: int) -> Iterator[list[Replica]]:
    with contextlib.ExitStack() as stack:
        replicas = [stack.enter_context(Replica(host, port)) for host in HOSTS]
        for replica in replicas:
            threading.Thread(target=replica.serve_forever, args=(0.02,), daemon=True).start()
            stack.callback(replica.shutdown)
        yield replicas


@pytest.fixture(scope="module")
def balanced() -> Iterator[tuple[Balancer, list[Replica]]]:
    """Run a balancer that has resolved two replicas by their name."""
    port = free_port()
    with replicas_at(port) as replicas, balancing(port) as balancer:
        balancer.names.addresses += HOSTS
        balancer.wait_until_up(2)
        yield balancer, replicas


Reply = tuple[int, str | None, bytes]


def ask(balancer: Balancer, method: str, path: str, body: bytes | None = None) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", balancer.port, timeout=20)
    with contextlib.closing(connection):
        connection.request(method, path, body)
        reply = connection.getresponse()
        return reply.status, reply.headers["retry-after"], reply.read()


def requests_of(replicas: list[Replica], path: str) -> list[int]:
    """Return each replica's number of requests for a path since the last call."""
    found = [sum(asked == path for _, asked, _ in replica.asked) for replica in replicas]
    for replica in replicas:
        replica.asked.clear()
    return found


@pytest.mark.parametrize("size", [0, LARGEST_REPEATED])
def test_a_request_that_is_lost_is_sent_once_more_to_another_replica(
    balanced: tuple[Balancer, list[Replica]], size: int
) -> None:
    balancer, replicas = balanced
    status, retry_after, body = ask(balancer, "POST", "/lost", b"x" * size)
    assert status == 502
    assert retry_after == "1"
    problem = json.loads(body)
    assert (problem["status"], problem["retryable"]) == (502, True)
    assert [one.asked for one in replicas] == [[("POST", "/lost", size)]] * 2
    requests_of(replicas, "/lost")


def test_what_may_change_something_is_not_sent_again(
    balanced: tuple[Balancer, list[Replica]],
) -> None:
    balancer, replicas = balanced
    ask(balancer, "PUT", "/lost", b"{}")
    assert sum(requests_of(replicas, "/lost")) == 1


@pytest.mark.parametrize(("path", "status"), UNLIKELY.items())
def test_a_refusal_goes_to_the_client_as_it_is(
    balanced: tuple[Balancer, list[Replica]], path: str, status: int
) -> None:
    balancer, replicas = balanced
    assert ask(balancer, "POST", path, b"{}") == (status, "7", BODY)
    assert sum(requests_of(replicas, path)) == 1


def test_a_reply_that_has_begun_is_not_asked_for_again(
    balanced: tuple[Balancer, list[Replica]],
) -> None:
    balancer, replicas = balanced
    with pytest.raises(http.client.IncompleteRead):
        ask(balancer, "POST", "/half", b"{}")
    assert sum(requests_of(replicas, "/half")) == 1


def test_requests_go_to_who_is_ready(balanced: tuple[Balancer, list[Replica]]) -> None:
    balancer, replicas = balanced
    first = replicas[0]
    first.is_ready = False
    balancer.wait_until_up(1)
    assert {ask(balancer, "POST", "/encode", b"{}")[0] for _ in range(4)} == {200}
    assert requests_of(replicas, "/encode") == [0, 4]
    first.is_ready = True
    balancer.wait_until_up(2)


def test_a_client_that_leaves_takes_its_request_with_it(
    balanced: tuple[Balancer, list[Replica]],
) -> None:
    balancer, replicas = balanced
    with socket.create_connection(("127.0.0.1", balancer.port)) as client:
        client.sendall(b"POST /slow HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")
        balancer.wait_until(lambda: any(replica.asked for replica in replicas), 60)
    (asked,) = [replica for replica in replicas if replica.asked]
    assert asked.left.wait(60)
    assert sum(requests_of(replicas, "/slow")) == 1


def test_without_replicas_the_balancer_asks_to_come_later() -> None:
    with balancing(free_port()) as balancer:
        status, retry_after, body = ask(balancer, "POST", "/encode", b"{}")
    assert (status, retry_after) == (503, "2")
    assert json.loads(body)["detail"] == "no replica is ready; send the request again later"


def seconds(name: str) -> int:
    """Return a time in the configuration, in seconds."""
    words = CONFIGURATION.read_text(encoding="utf-8").split()
    at = next(i for i, word in enumerate(words) if word == name and words[i - 1] == "timeout")
    return int(words[at + 1].removesuffix("s"))


def test_it_is_the_service_that_says_that_time_is_over() -> None:
    settings = Settings()
    assert seconds("server") > settings.request_timeout_seconds
    assert seconds("client") > settings.client_timeout_seconds
    assert seconds("http-request") > settings.client_timeout_seconds
    assert seconds("http-keep-alive") < KEEP_ALIVE_SECONDS
