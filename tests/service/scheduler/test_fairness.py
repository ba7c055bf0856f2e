"""Order of waiting texts between clients and requests, and the choice of a batch."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service.scheduler.fairness import EXACT, FairQueue

from service.engines.contract import BatchCost
from service.scheduler.call import Call
from service.scheduler.lanes import MAX_PADDING_SHARE, WINDOW_BATCHES, Lane
from service.scheduler.queue import Slot, Work
from tests.service.harness import text


class Queue:
    """Queue whose texts are taken one by one; each request has a name."""

    def __init__(self) -> None:
        self.texts = FairQueue()
        self.numbers = itertools.count()
        self.names: dict[Submission, str] = {}

    def push(self, name: str, *lengths: int, client: str = "") -> Submission:
        async def submit() -> Submission:
            return Submission([text(n) for n in lengths], self.numbers, Call(client))

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


def fill(lane: Lane, lengths: list[int]) -> list[Entry]:
    """Queue a request of one text for each length."""

    async def submit() -> list[Submission]:
        numbers = itertools.count()
        return [Submission([text(length)], numbers, Call()) for length in lengths]

    submissions = asyncio.run(submit())
    for submission in submissions:
        lane.push(submission)
    return [entry for submission in submissions for entry in submission.entries]


def drain(lane: Lane, max_batch_tokens: int) -> list[list[int]]:
    batches = []
    while lane.queued_tokens:
        batch = lane.take(max_batch_tokens)
        assert batch, "something waits and nothing is taken"
        batches.append([entry.number for entry in batch])
    return batches


@pytest.mark.parametrize(
    ("lengths", "max_batch_tokens", "batches"),
    [
        pytest.param([5], 64, [[0]], id="one"),
        pytest.param([8, 8, 8, 8], 24, [[0, 1, 2], [3]], id="the budget is filled, not exceeded"),
        pytest.param([8, 8, 8], 23, [[0, 1], [2]], id="one token less"),
        pytest.param([10, 50, 10, 49, 11], 100, [[0, 2, 4], [1, 3]], id="like lengths together"),
        pytest.param([50, 10, 10], 100, [[0], [1, 2]], id="the oldest goes first, whatever fits"),
        pytest.param([100, 8, 8], 64, [[0], [1, 2]], id="longer than the budget goes alone"),
        pytest.param([8, 100, 8], 64, [[0, 2], [1]], id="and does not keep others from grouping"),
        pytest.param([100, 100], 64, [[0], [1]], id="two that are too long go one by one"),
        pytest.param([20, 10], 64, [[0, 1]], id="cheap padding is taken"),
        pytest.param([50, 11], 100, [[0], [1]], id="padding above its worth is not"),
        pytest.param([20, 17], 37, [[0, 1]], id="padding is not of the budget"),
        pytest.param([20, 17], 36, [[0], [1]], id="real tokens are"),
        pytest.param([20, 21, 19, 19], 64, [[0, 2, 3], [1]], id="the shorter neighbour first"),
        pytest.param([9, 8, 9, 8], 18, [[0, 2], [1, 3]], id="equal before nearly equal"),
    ],
)
def test_batches(lengths: list[int], max_batch_tokens: int, batches: list[list[int]]) -> None:
    lane = Lane("encode", 1.0)
    fill(lane, lengths)
    assert drain(lane, max_batch_tokens) == batches


LIKE_TOKENS = BatchCost(fixed=10, token=1, padding=1)


@pytest.mark.parametrize(
    ("cost", "lengths", "batches"),
    [
        pytest.param(BatchCost(1, 1, 0), [20, 12, 10], [[0, 1, 2]], id="free padding"),
        pytest.param(BatchCost(1, 1, 1), [20, 12, 10], [[0], [1], [2]], id="dear padding"),
        pytest.param(LIKE_TOKENS, [20, 14], [[0, 1]], id="just worth it"),
        pytest.param(LIKE_TOKENS, [20, 13], [[0], [1]], id="just not worth it"),
        pytest.param(BatchCost(1, 0, 0), [40, 5, 5, 5], [[0, 1], [2, 3]], id="half is padding"),
        pytest.param(BatchCost(1, 1, 9), [7, 7, 7], [[0, 1, 2]], id="none is padding"),
    ],
)
def test_the_engines_cost_decides(
    cost: BatchCost, lengths: list[int], batches: list[list[int]]
) -> None:
    lane = Lane("encode", 1.0, cost=cost)
    fill(lane, lengths)
    assert drain(lane, 100) == batches


def test_an_empty_lane_gives_nothing() -> None:
    assert Lane("encode", 1.0).take(64) == []


def test_what_left_is_not_taken_and_not_kept() -> None:
    lane = Lane("encode", 1.0)
    entries = fill(lane, [8, 8, 8, 40])
    for entry in (entries[0], entries[2], entries[3]):
        lane.remove(entry)
    assert lane.queued_tokens == 8
    assert len(lane.texts) == lane.queued_texts == 1
    assert drain(lane, 64) == [[1]]


LENGTHS = st.lists(st.integers(1, 64), min_size=1, max_size=60)
COSTS = st.builds(BatchCost, st.integers(1, 99), st.integers(0, 9), st.integers(0, 9))


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 200), st.sets(st.integers(0, 59)), COSTS)
def test_every_batch_holds_the_oldest_and_keeps_every_bound(
    lengths: list[int], max_batch_tokens: int, leaving: set[int], cost: BatchCost
) -> None:
    lane = Lane("encode", 1.0, cost=cost)
    for entry in fill(lane, lengths):
        if entry.number in leaving:
            lane.remove(entry)
    waiting = {number for number in range(len(lengths)) if number not in leaving}
    assert lane.queued_tokens == sum(lengths[number] for number in waiting)
    while waiting:
        batch = [entry.number for entry in lane.take(max_batch_tokens)]
        assert min(waiting) in batch
        assert waiting.issuperset(batch)
        assert len(set(batch)) == len(batch)
        oldest = min(waiting)
        waiting -= set(batch)
        assert lane.queued_tokens == sum(lengths[number] for number in waiting)

        real = [lengths[number] for number in batch]
        grid = max(real) * len(real)
        assert len(batch) == 1 or sum(real) <= max_batch_tokens
        assert grid - sum(real) <= MAX_PADDING_SHARE * grid
        first = real[batch.index(oldest)]
        spent = cost.of(sum(real), grid - sum(real))
        assert spent * first <= cost.of(first, 0) * sum(real)
        passed = sum(lengths[number] for number in range(max(batch)) if number in waiting)
        assert passed <= WINDOW_BATCHES * max_batch_tokens  # skipping a text has a limit
        for length in set(real):  # equal texts leave in the order of arrival
            same = [number for number in batch if lengths[number] == length]
            younger = [number for number in waiting if lengths[number] == length]
            assert same == sorted(same)
            assert not younger or max(same) < min(younger)
    assert lane.queued_tokens == lane.queued_texts == 0


@pytest.mark.anyio
async def test_a_single_text_does_not_wait_for_a_list_of_its_client() -> None:
    """Batches that another client's list begins leave the long texts of this client waiting."""
    lane, numbers = Lane("encode", 1.0), itertools.count()

    def push(client: str, *lengths: int) -> Submission:
        submission = Submission([text(length) for length in lengths], numbers, Call(client))
        lane.push(submission)
        return submission

    push("other", *[256] * 128)
    lane.take(512)
    push("own", *[256] * 128)
    lane.take(512)
    single = push("own", 9).entries[0]
    batches = 0
    while single.waiting:
        lane.take(512)
        batches += 1
    assert batches <= 3


def test_first_texts_of_other_clients_fill_a_batch() -> None:
    lane, numbers = Lane("encode", 1.0), itertools.count()

    async def push() -> None:
        for client in "abc":
            lane.push(Submission([text(8), text(8)], numbers, Call(client)))

    asyncio.run(push())
    clients = [entry.submission.caller.client for entry in lane.take(48)]
    assert sorted(clients) == [*"aabbcc"]
