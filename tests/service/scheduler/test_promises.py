"""What others are promised, in fair shares."""

from __future__ import annotations

from service.scheduler.promises import Promise, Promises


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
