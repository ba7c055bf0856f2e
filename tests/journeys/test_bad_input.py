"""Wrong and hostile requests do not affect other clients."""

from __future__ import annotations

import concurrent.futures

import numpy as np
import pytest

from testing import malformed
from testing.blocking import ask
from testing.process import Service

pytestmark = pytest.mark.e2e

GOOD = {"inputs": "Hello world", "outputs": ["pooled"]}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("route", "body", "status"),
    [
        ("/encode", b'{"inputs": []}', 422),
        ("/encode", b'{"inputs": NaN}', 400),
        ("/encode", b'{"inputs": "\xed\xa0\x80"}', 400),
        ("/attention", b'{"inputs": "a", "layers": [6]}', 422),
        ("/encode", b'{"inputs": "' + b"word " * 300 + b'"}', 422),
        ("/encode", b'{"inputs": "' + b"x" * 10_000_000 + b'", "truncate": true}', 422),
        ("/encode", b'{"inputs": "' + b"x" * 20_000_000 + b'"}', 413),
        ("/encode", b"[" * 30_000, 400),
        ("/encode", b'{"inputs": "a", "layer": ' + b"9" * 5000 + b"}", 400),
    ],
)
def test_a_clear_problem_and_nobody_else_hurt(client, route, body, status):
    """The recording has every kind of refusal; these are the costly ones, and one of each layer."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        neighbours = [pool.submit(client.post, "/encode", json=GOOD) for _ in range(3)]
        reply = client.post(route, content=body, headers=JSON)
        replies = [neighbour.result() for neighbour in neighbours]
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json()
    assert problem["status"] == status
    assert problem["request_id"] == reply.headers["x-request-id"]
    assert len(reply.content) < 4096
    vectors = [neighbour.json()["results"][0]["pooled"] for neighbour in replies]
    np.testing.assert_allclose(vectors, vectors[:1] * 3, atol=1e-6)


CANARY = {"inputs": ["still", "here?"]}


@pytest.mark.parametrize("seed", [0])
def test_each_is_answered_or_cut_off_and_nobody_notices(seed: int) -> None:
    flags = ("--client-timeout-seconds", "1", "--allowed-hosts", "*")
    with Service.of_headscope("--engine", "fake", *flags) as service:
        service.wait_until_ready()
        before = ask(service.port, "/attention", CANARY)
        assert before.status == 200
        outcomes = malformed.run(service.port, 300, seed)
        after = ask(service.port, "/attention", CANARY)
        assert service.ready()
        service.stop()
    counts = {outcome: len(sent) for outcome, sent in outcomes.items()}
    assert sum(counts.values()) == 300
    assert {*counts} <= {"closed", 200, 400, 404, 405, 408, 413, 415, 422, 431}
    assert {200, 400, 408, 431} <= {*counts}
    assert after.body == before.body
