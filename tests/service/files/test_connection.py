"""Requests are retried where that can help, after the service's `retry-after`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from headscope.wire import Answer, refusal
from service.files.connection import PATIENT, Connection, RefusedRequest, ServiceFailure
from service.files.options import UsageError
from service.inference.text_warnings import Warnings

Reply = tuple[int, dict[str, str], bytes]


class Stub(HTTPServer):
    """Server that sends its replies in turn, and repeats the last one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies: list[Reply] = []
        self.asked: list[tuple[str, str | None]] = []
        self.expected: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        stub = self.server
        assert isinstance(stub, Stub)
        self.rfile.read(int(self.headers["Content-Length"]))
        stub.asked.append((self.path, self.headers["Authorization"]))
        stub.expected.append(self.headers["x-expect-fingerprint"])
        status, headers, body = stub.replies.pop(0) if stub.replies[1:] else stub.replies[0]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)  # HTTP/1.0: the end of the connection follows

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield server
        server.shutdown()
        thread.join()


BUSY = (429, {"Retry-After": "0"}, b'{"detail": "the queue is full"}')
HASTY = replace(PATIENT, first_wait_seconds=0.001)
"""The retries of a run, without their waits."""


def test_warnings_of_replies_are_kept(stub: Stub) -> None:
    """Headers that are not numbers are not this service's, and are ignored."""
    stub.replies = [(200, {"x-truncated": number}, b"{}") for number in ("2", "", "some")]
    connection = Connection(stub.url)
    for _ in range(3):
        connection.post("/encode", {}, "application/json")
    assert connection.warnings == [Warnings(truncated=2), Warnings(), Warnings()]


@pytest.mark.parametrize(("first", "then"), [("one", "two"), ("one", None), (None, "two")])
@pytest.mark.parametrize("status", [200, 422])
def test_another_model_ends_the_requests(
    stub: Stub, first: str | None, then: str | None, status: int
) -> None:
    """This includes refusals of a text; a refusal without the header may be a proxy's."""
    replies = [(200, first), (200, first), (status, then)]
    stub.replies = [
        (code, {} if name is None else {"x-model-fingerprint": name}, b"{}")
        for code, name in replies
    ]
    connection = Connection(stub.url)
    connection.post("/encode", {}, "*/*")
    assert connection.fingerprint == first
    connection.post("/encode", {}, "*/*")
    assert stub.expected == [None, first]
    if (status, then) == (422, None):
        with pytest.raises(RefusedRequest):
            connection.post("/encode", {}, "*/*")
        return
    says = f"was {first or 'absent'}, and is {then or 'absent'}; the written parts stay; --resta"
    with pytest.raises(ServiceFailure, match=says):
        connection.post("/encode", {}, "*/*")


def test_a_busy_service_is_asked_again(stub: Stub) -> None:
    """So is a proxy without its service."""
    stub.replies = [BUSY, (503, {}, b""), (502, {}, b""), (200, {}, b"vectors")]
    connection = Connection(stub.url, "secret", HASTY)
    assert connection.post("/encode", {"inputs": ["a"]}, "*/*") == b"vectors"
    assert stub.asked == [("/encode", "Bearer secret")] * 4


def test_the_waits_of_a_run() -> None:
    """They begin after `retry-after`, of at most five minutes, and grow to half a minute."""
    answers = [Answer(429, {"retry-after": seconds}, b"") for seconds in ("7", "0", "900")]
    seven, zero, long = (refusal(answer, "http://service.example") for answer in answers)
    assert [PATIENT.wait(seven, 0, jitter) for jitter in (0, 1)] == [7.25, 7.5]
    assert [PATIENT.wait(zero, attempt, 1) for attempt in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert PATIENT.wait(long, 0, 1) == 300.5


def test_a_service_that_never_answers(stub: Stub) -> None:
    stub.replies = [BUSY]
    with pytest.raises(ServiceFailure, match=r"429: the queue is full \(8 tries\); the same comm"):
        Connection(stub.url, retries=HASTY).post("/encode", {}, "*/*")
    assert len(stub.asked) == 8


def test_a_reply_that_breaks_off_is_requested_again(stub: Stub) -> None:
    stub.replies = [(200, {"Content-Length": "9"}, b"vec"), (200, {}, b"vectors")]
    assert Connection(stub.url, retries=HASTY).post("/encode", {}, "*/*") == b"vectors"


def test_what_is_refused_is_not_sent_again(stub: Stub) -> None:
    stub.replies = [(422, {}, b'{"detail": "inputs[0] has 600 tokens"}')]
    with pytest.raises(RefusedRequest, match="600 tokens") as refused:
        Connection(stub.url).post("/encode", {}, "*/*")
    assert refused.value.status == 422
    assert len(stub.asked) == 1


def test_nobody_listens() -> None:
    """The first attempt is reported at once, and only once: the waits of a run take a minute."""
    said: list[str] = []
    rules = replace(HASTY, longest_wait_seconds=0.002)
    connection = Connection("http://127.0.0.1:1", retries=rules, say=said.append)
    for _ in range(2):
        with pytest.raises(ServiceFailure, match=r"no reply from .*:1/info: .*8 t"):
            connection.get("/info")
    (line,) = said
    assert line.startswith("no reply from http://127.0.0.1:1/info: ")
    assert line.endswith("; retrying 7 times, for about 0 s")


@pytest.mark.parametrize(("url", "key"), [("http://", None), ("http://a", "no key")])
def test_an_address_or_a_key_that_cannot_be_used(url: str, key: str | None) -> None:
    with pytest.raises(UsageError, match="http or https" if key is None else "api_key is empty"):
        Connection(url, key)
