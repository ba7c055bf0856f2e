"""Order of waiting texts, between clients and between the requests of one client."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.scheduler.fairness import EXACT, FairQueue
from service.scheduler.submission import Caller, Entry, Submission
from tests.service.harness import text


class Queue:
    """Queue whose texts are taken one by one; each request has a name."""

    def __init__(self) -> None:
        self.texts = FairQueue()
        self.numbers = itertools.count()
        self.names: dict[Submission, str] = {}

    def push(self, name: str, *lengths: int, client: str = "") -> Submission:
        async def submit() -> Submission:
            return Submission([text(n) for n in lengths], self.numbers, Caller(client))

        submission = asyncio.run(submit())
        self.texts.push(submission, submission.entries)
        self.names[submission] = name
        return submission

    def take(self, count: int = 1, *, beside: bool = False) -> str:
        taken = []
        for _ in range(count):
            (entry, *_) = self.texts
            assert self.texts.first(1) == [entry]
            self.begin([entry], beside=beside)
            taken.append(self.names[entry.submission])
        return "".join(taken)

    def begin(self, batch: list[Entry], *, beside: bool = False) -> None:
        self.texts.begin(batch, beside=beside)
        for entry in batch:
            self.texts.remove(entry)


def test_single_texts_go_in_the_order_they_came_whatever_their_length() -> None:
    queue = Queue()
    for name, length in zip("abcde", (50, 1, 300, 7, 7), strict=True):
        queue.push(name, length)
    assert queue.take(5) == "abcde"
    assert (len(queue.texts), queue.texts.tokens) == (0, 0)


def test_a_single_text_goes_between_those_of_a_list() -> None:
    queue = Queue()
    queue.push("L", *[10] * 100)
    assert queue.take(3) == "LLL"
    queue.push("a", 10)
    queue.push("b", 10)
    assert queue.take(4) == "abLL"
    queue.push("c", 10)
    assert queue.take(2) == "cL"


def test_single_texts_one_after_another_each_go_before_the_rest_of_a_list() -> None:
    queue = Queue()
    queue.push("L", *[10] * 100)
    assert queue.take(2) == "LL"
    for name in "abc":  # each arrives while the same batch of the list is computed
        queue.push(name, 5)
        assert queue.take(beside=True) == name
    assert queue.take(3) == "LLL"


def test_lists_go_in_turn_by_their_tokens() -> None:
    queue = Queue()
    queue.push("L", *[10] * 100)
    queue.push("M", *[20] * 100)
    taken = Counter(queue.take(90))
    assert taken["L"] == pytest.approx(60, abs=2)
    assert taken["M"] == pytest.approx(30, abs=2)


def test_a_stream_of_single_texts_does_not_starve_a_list() -> None:
    queue = Queue()
    queue.push("L", *[10] * 100)
    for _ in range(9):
        queue.push("a", 10)
    taken = ""
    for _ in range(400):
        taken += queue.take()
        if taken[-1] == "a":
            queue.push("a", 10)  # nine requests wait at all times
    assert Counter(taken)["L"] == pytest.approx(40, abs=8)


def test_clients_share_alike_however_many_requests_they_have() -> None:
    queue = Queue()
    for _ in range(200):
        queue.push("a", 10, client="A")
    queue.push("B", *[10] * 200, client="B")
    queue.push("C", *[30] * 200, client="C")
    taken = Counter(queue.take(210))
    assert taken["a"] == pytest.approx(90, abs=2)
    assert taken["B"] == pytest.approx(90, abs=2)
    assert taken["C"] == pytest.approx(30, abs=2)


def test_whoever_was_away_has_no_credit() -> None:
    queue = Queue()
    queue.push("A", *[10] * 100, client="A")
    assert queue.take(50) == "A" * 50
    queue.push("B", *[10] * 100, client="B")
    taken = queue.take(40)
    assert Counter(taken)["B"] == pytest.approx(20, abs=1)
    assert "BBB" not in taken


def test_what_leaves_costs_nobody_anything() -> None:
    queue = Queue()
    leaves = queue.push("L", *[10] * 50, client="A")
    queue.push("a", 10, client="A")
    queue.push("b", 10, client="B")
    for entry in leaves.entries:
        queue.texts.remove(entry)
    assert (len(queue.texts), queue.texts.tokens) == (2, 20)
    assert sorted(queue.take(2)) == ["a", "b"]


def test_the_window_is_the_order_in_which_they_go() -> None:
    queue = Queue()
    queue.push("L", *[10] * 8, client="A")
    queue.push("a", 5, client="B")
    queue.push("b", 5, client="B")
    window = queue.texts.first(45)
    assert sum(entry.task.tokens for entry in window) <= 45
    assert [queue.names[entry.submission] for entry in window] == list("LabLLL")[: len(window)]
    assert len(queue.texts.first(1)) == 1  # one at least
    everything = queue.texts.first(10**6)
    queue.begin(everything)
    assert len(queue.texts) == 0


@pytest.mark.parametrize(
    ("client", "tokens", "before"),
    [
        ("A", 0, 30),  # the earlier single texts; of a list only the first text
        ("A", 50, 30 + 50 + 50),
        ("B", 0, 0),
        ("B", 20, 20 + 20),  # each other client gets as much meanwhile
        ("B", 10**4, 1030 + 10**4),
    ],
)
def test_the_tokens_that_go_before_a_request(client: str, tokens: int, before: int) -> None:
    queue = Queue()
    queue.push("a", 10, client="A")
    queue.push("b", 10, client="A")
    queue.push("L", *[10] * 101, client="A")
    assert queue.texts.tokens_before(client, tokens) == pytest.approx(before, abs=10)


def test_many_texts_are_counted_by_their_mean() -> None:
    queue = Queue()
    for _ in range(4 * EXACT):
        queue.push("a", 7)
    queue.push("L", *[7] * 10)
    assert queue.texts.tokens_before("") == pytest.approx(7 * (4 * EXACT + 1), rel=0.01)


REQUESTS = st.lists(
    st.tuples(st.sampled_from("ABC"), st.lists(st.integers(1, 40), min_size=1, max_size=6)),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(REQUESTS, st.integers(1, 60))
def test_everything_goes_once_and_the_texts_of_a_request_in_order(
    requests: list[tuple[str, list[int]]], window: int
) -> None:
    queue = Queue()
    entries = [
        entry
        for client, lengths in requests
        for entry in queue.push("x", *lengths, client=client).entries
    ]
    taken: list[Entry] = []
    while len(queue.texts):
        batch = queue.texts.first(window)
        queue.begin(batch)
        taken += batch
    assert sorted(entry.number for entry in taken) == [entry.number for entry in entries]
    for _, group in itertools.groupby(
        sorted(taken, key=lambda e: e.number), lambda e: e.submission
    ):
        places = [taken.index(entry) for entry in group]
        assert places == sorted(places)
    assert queue.texts.tokens == 0
