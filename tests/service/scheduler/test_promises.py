"""Tokens reserved by other clients, in fair shares."""

from __future__ import annotations

import math

import pytest

from service.scheduler.promises import Promise, Promises, fair_shares


def test_other_clients_and_requests_go_before_in_fair_shares() -> None:
    promises, long, short = Promises(), Promise(1000), Promise(30)
    promises.add("a", long)
    promises.add("a", short)
    assert promises.before("a", 0) == 0
    assert promises.before("a", 100) == 100 + 30
    assert promises.before("b", 100) == 100
    promises.add("b", Promise(50))
    assert promises.before("b", 100) == 50 + 150
    long.keep(990)
    assert promises.before("b", 100) == 50 + 40


def test_what_was_kept_or_has_ended_is_forgotten() -> None:
    promises, kept, ended = Promises(), Promise(10), Promise(10)
    for promise in (kept, ended):
        promises.add("a", promise)
    kept.keep(11)
    ended.end()
    assert promises.before("b", 100) == 0
    assert not promises._open


@pytest.mark.parametrize(
    ("sizes", "total", "shares"),
    [([10, 10], 8, [4, 4]), ([2, 10, 10], 12, [2, 5, 5]), ([3, 1], 9, [3, 1]), ([], 5, [])],
    ids=str,
)
def test_what_one_does_not_take_is_divided_among_the_others(
    sizes: list[int], total: int, shares: list[int]
) -> None:
    assert fair_shares(sizes, total) == shares


def test_room_comes_when_enough_of_the_promised_work_is_computed() -> None:
    """At 10 tokens a second: of two others 120 tokens are left after 18 s, of 300 and 60 each."""
    promises = Promises()
    for tokens in (150, 150):
        promises.add("a", Promise(tokens))
    assert promises.seconds_until_room("a", 100, 300, 10.0, 0.0) == 1
    assert promises.seconds_until_room("a", 100, 220, 10.0, 0.0) == 18
    assert promises.seconds_until_room("a", 100, 100, 10.0, 0.0) == 30
    assert promises.seconds_until_room("a", 100, 0, 10.0, 0.0) == 31, "all of it is computed"
    assert promises.seconds_until_room("b", 100, 150, 10.0, 0.0) == 25, "50 tokens of another"


def test_room_comes_when_the_deadline_of_a_promise_has_passed() -> None:
    promises = Promises()
    promises.add("a", Promise(10**6), finish_by=29.0)
    promises.add("a", Promise(10**6), finish_by=math.inf)
    assert promises.seconds_until_room("a", 100, 200, 10.0, 0.0) == 29
