"""Several requests on one connection: order, end, and leftover bytes."""

from __future__ import annotations

import json
import logging
import time

import pytest

from model.artifact.manifest import Artifact
from service.http.reader import PIPELINED
from testing import raw_http
from testing.blocking import RawConnection, replies_in
from testing.raw_http import BODY, CHUNKED, GET, LENGTH, POST
from tests.service.harness import GatedEngine, listening
from tests.service.http.wire import CLOSE, everything, refusal, replies


@pytest.mark.parametrize(
    "name", ["TLS", "no host", "two lengths", "called 1.2", "chunk that goes on"]
)
def test_what_is_wrong_is_answered_in_its_turn(port: int, name: str) -> None:
    """The reply to the second request must not look like the reply to the first."""
    first, wrong = POST + LENGTH + b"\r\n" + BODY, raw_http.AMBIGUOUS[name]
    for parts in ((first + wrong,), (first, wrong)):
        (good, refused) = replies(port, *parts)
        assert (good[0], refused[0]) == (200, 400)
        assert json.loads(good[2])["usage"]["inputs"] == 1


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
