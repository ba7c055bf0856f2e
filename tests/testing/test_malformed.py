"""Equal seeds send equal requests, and every kind of outcome is counted."""

from __future__ import annotations

import random

from testing import malformed
from testing.raw_http import GOOD
from tests.testing.servers import answering


def test_requests_follow_from_the_seed() -> None:
    def some(seed: int) -> list[bytes]:
        return [malformed.request(random.Random(f"{seed}-{n}")) for n in range(50)]

    assert some(1) == some(1) != some(2)
    assert len(set(some(1))) > 25
    assert set(some(1)) - set(GOOD.values())


def test_what_became_of_requests_is_counted(monkeypatch) -> None:
    outcomes = iter([200, 400, 503, "closed", "truncated", "hang"])
    monkeypatch.setattr(malformed, "CONNECTIONS", 1)
    monkeypatch.setattr(malformed, "exchange", lambda port, data: next(outcomes))
    summary = malformed.run(1, 6, 0)
    assert summary.statuses == {200: 1, 400: 1, 503: 1}
    assert summary.closed == 1
    assert (len(summary.truncated), len(summary.hangs), len(summary.five_hundreds)) == (1, 1, 1)


def test_good_requests_are_answered_over_a_socket(monkeypatch) -> None:
    monkeypatch.setattr(malformed, "request", lambda _: GOOD["length"])
    with answering() as asked:
        assert malformed.run(asked.port, 5, 0).statuses == {200: 5}
