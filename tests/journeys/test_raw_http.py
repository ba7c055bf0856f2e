"""Requests that are not valid HTTP, against the shipped server process."""

from __future__ import annotations

import pytest

from testing import malformed
from testing.blocking import ask
from testing.process import Service

pytestmark = pytest.mark.e2e
CANARY = {"inputs": ["still", "here?"]}


@pytest.mark.parametrize("seed", [0])
def test_each_is_answered_or_cut_off_and_nobody_notices(seed: int) -> None:
    flags = ("--client-timeout-seconds", "1", "--allowed-hosts", "*")
    with Service.of_headscope("--engine", "fake", *flags) as service:
        service.wait_until_ready()
        before = ask(service.port, "/attention", CANARY)
        assert before.status == 200
        summary = malformed.run(service.port, 300, seed)
        after = ask(service.port, "/attention", CANARY)
        assert service.ready()
        service.stop()
    assert not summary.five_hundreds
    assert not summary.hangs
    assert not summary.truncated
    assert summary.closed + summary.statuses.total() == 300
    assert set(summary.statuses) <= {200, 400, 404, 405, 408, 413, 415, 422, 431}
    assert {200, 400, 408, 431} <= set(summary.statuses)
    assert after.body == before.body
