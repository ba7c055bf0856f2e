"""Order of waiting texts between clients and requests, and the choice of a batch."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engines.contract import BatchCost
from service.engines.fake import FakeEngine
from service.scheduler.call import Call
from service.scheduler.lanes import WINDOW_BATCHES, BatchLimits, Lane
from service.scheduler.queue import EXACT_CLIENTS, MAX_PADDING_SHARE, FairQueue, Slot, Work
from tests.service.harness import CONFIG, Recorder, text


def work_of(*lengths: int, client: str = "") -> Work:
    """Return a request of one text for each length."""

    async def described() -> Work:
        return Work([text(length) for length in lengths], Call(client))

    return asyncio.run(described())


class Queue(FairQueue):
    """Queue whose texts are taken one by one; each request has a name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[Work, str] = {}

    def add(self, name: str, *lengths: int, client: str = "") -> Work:
        work = work_of(*lengths, client=client)
        self.push(work)
        self.names[work] = name
        return work

    def order(self, count: int = 1, *, beside: bool = False) -> str:
        """Take some texts; return the names of their requests."""
        taken = []
        for _ in range(count):
            (slot,) = self.window(1)
            self.take([slot], beside=beside)
            taken.append(self.names[slot.work])
        return "".join(taken)


def test_single_texts_go_in_the_order_they_came_whatever_their_length() -> None:
    queue = Queue()
    for name, length in zip("abcde", (50, 1, 300, 7, 7), strict=True):
        queue.add(name, length)
    assert queue.order(5) == "abcde"
    assert (queue.queued_texts, queue.queued_tokens) == (0, 0)


def test_a_single_text_goes_between_those_of_a_list() -> None:
    queue = Queue()
    queue.add("L", *[10] * 100)
    assert queue.order(3) == "LLL"
    queue.add("a", 10)
    queue.add("b", 10)
    assert queue.order(4) == "abLL"
    for name in "abc":  # each arrives while the same batch of the list is computed
        queue.add(name, 5)
        assert queue.order(beside=True) == name
    assert queue.order(3) == "LLL"


def test_a_stream_of_single_texts_does_not_starve_a_list() -> None:
    queue, taken = Queue(), ""
    queue.add("L", *[10] * 100)
    for _ in range(9):
        queue.add("a", 10)
    for _ in range(400):
        taken += queue.order()
        if taken[-1] == "a":
            queue.add("a", 10)  # nine requests wait at all times
    assert Counter(taken)["L"] == pytest.approx(40, abs=8)


@pytest.mark.parametrize(
    ("requests", "shares"),
    [
        pytest.param(
            [("L", [10] * 100, ""), ("M", [20] * 100, "")], {"L": 60, "M": 30}, id="requests"
        ),
        pytest.param(
            [("a", [10], "A")] * 200 + [("B", [10] * 200, "B"), ("C", [30] * 200, "C")],
            {"a": 90, "B": 90, "C": 30},
            id="clients, however many requests they have",
        ),
    ],
)
def test_shares_of_tokens_are_equal(
    requests: list[tuple[str, list[int], str]], shares: dict[str, int]
) -> None:
    queue = Queue()
    for name, lengths, client in requests:
        queue.add(name, *lengths, client=client)
    taken = Counter(queue.order(sum(shares.values())))
    assert taken == {name: pytest.approx(count, abs=2) for name, count in shares.items()}


def test_whoever_was_away_has_no_credit() -> None:
    queue = Queue()
    queue.add("A", *[10] * 100, client="A")
    assert queue.order(50) == "A" * 50
    queue.add("B", *[10] * 100, client="B")
    taken = queue.order(40)
    assert Counter(taken)["B"] == pytest.approx(20, abs=1)
    assert "BBB" not in taken


def test_maps_go_first_and_cost_no_client_its_share() -> None:
    queue = Queue()
    queue.add("A", *[10] * 100, client="A")
    queue.push(maps := work_of(100, 100, client="A"), maps=True)
    queue.names[maps] = "m"
    assert queue.order(2) == "mm"
    queue.add("B", *[10] * 100, client="B")
    assert Counter(queue.order(20))["B"] == pytest.approx(10, abs=1)


def test_what_leaves_costs_nobody_anything() -> None:
    queue = Queue()
    leaves = queue.add("L", *[10] * 50, client="A")
    queue.add("a", 10, client="A")
    queue.add("b", 10, client="B")
    gone = queue.add("C", 5, 5, client="C")
    for slot in (*leaves.slots, *gone.slots):
        queue.remove(slot)
    assert (queue.queued_texts, queue.queued_tokens, len(queue._clients)) == (2, 20, 2)
    assert sorted(queue.order(2)) == ["a", "b"]


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
    for lengths in ([10], [10], [10] * 101):
        queue.add("a", *lengths, client="A")
    assert queue.tokens_before(client, tokens) == pytest.approx(before, abs=10)


def test_beside_many_clients_a_forecast_assumes_that_each_takes_its_share() -> None:
    queue = Queue()
    queue.add("h", 1000, client="hog")
    for number in range(EXACT_CLIENTS - 1):
        queue.add("a", 7, client=f"{number}")
    assert queue.tokens_before("own", 100) == 100 + 100 + 7 * (EXACT_CLIENTS - 1)
    queue.add("a", 7, client="one more")
    assert queue.tokens_before("own", 100) == 100 + 1000 + 7 * EXACT_CLIENTS
    assert queue.tokens_before("own", 2) == 2 + 2 * (EXACT_CLIENTS + 1)


REQUESTS = st.lists(
    st.tuples(st.sampled_from("ABC"), st.lists(st.integers(1, 40), min_size=1, max_size=6)),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(REQUESTS, st.integers(1, 60))
def test_everything_goes_once_and_the_texts_of_a_request_in_order(
    requests: list[tuple[str, list[int]]], tokens: int
) -> None:
    queue, taken = Queue(), list[Slot]()
    works = [queue.add("x", *lengths, client=client) for client, lengths in requests]
    while queue.queued_texts:
        batch = queue.window(tokens)
        assert len(batch) == 1 or sum(slot.tokens for slot in batch) <= tokens
        queue.take(batch)
        taken += batch
    assert len(taken) == len(set(taken)) == sum(len(work.slots) for work in works)
    for work in works:
        assert [slot for slot in taken if slot.work is work] == work.slots
    assert (queue.queued_tokens, queue._clients, queue._turns) == (0, {}, [])


def test_the_window_takes_clients_and_their_requests_in_turn() -> None:
    queue = Queue()
    queue.add("L", *[10] * 8, client="A")
    queue.add("a", 5, client="B")
    queue.add("b", 5, client="B")
    assert [queue.names[slot.work] for slot in queue.window(45)] == list("LabLL")


def lane_of(cost: BatchCost = FakeEngine.cost) -> Lane:
    """Return an empty lane of an engine with a cost."""
    engine = FakeEngine(CONFIG)
    engine.cost = cost
    return Lane("encode", BatchLimits(64, 10**6), engine, Recorder())


def fill(lane: Lane, lengths: list[int]) -> list[Slot]:
    """Queue a request of one text for each length."""
    works = [work_of(length) for length in lengths]
    for work in works:
        lane.push(work)
    return [slot for work in works for slot in work.slots]


def drain(lane: Lane, max_batch_tokens: int, slots: list[Slot]) -> list[list[int]]:
    """Return the indices of the texts of each batch."""
    batches = []
    while lane.queued_tokens:
        batch = lane.next_batch(max_batch_tokens)
        assert batch, "something waits and nothing is taken"
        batches.append([slots.index(slot) for slot in batch])
    return batches


USUAL = FakeEngine.cost
LIKE_TOKENS = BatchCost(fixed=10, token=1, padding=1)


@pytest.mark.parametrize(
    ("cost", "lengths", "max_batch_tokens", "batches"),
    [
        pytest.param(USUAL, [5], 64, [[0]], id="one"),
        pytest.param(USUAL, [8, 8, 8, 8], 24, [[0, 1, 2], [3]], id="the budget is kept"),
        pytest.param(USUAL, [8, 8, 8], 23, [[0, 1], [2]], id="one token less"),
        pytest.param(USUAL, [10, 50, 10, 49, 11], 100, [[0, 2, 4], [1, 3]], id="like lengths"),
        pytest.param(USUAL, [50, 10, 10], 100, [[0], [1, 2]], id="the oldest goes first"),
        pytest.param(USUAL, [100, 8, 8], 64, [[0], [1, 2]], id="longer than the budget goes alone"),
        pytest.param(USUAL, [8, 100, 8], 64, [[0, 2], [1]], id="and others still group"),
        pytest.param(USUAL, [100, 100], 64, [[0], [1]], id="two that are too long go one by one"),
        pytest.param(USUAL, [20, 10], 64, [[0, 1]], id="cheap padding is taken"),
        pytest.param(USUAL, [50, 11], 100, [[0], [1]], id="padding above its worth is not"),
        pytest.param(USUAL, [20, 17], 37, [[0, 1]], id="padding is not of the budget"),
        pytest.param(USUAL, [20, 17], 36, [[0], [1]], id="real tokens are"),
        pytest.param(USUAL, [20, 21, 19, 19], 64, [[0, 2, 3], [1]], id="the shorter first"),
        pytest.param(USUAL, [9, 8, 9, 8], 18, [[0, 2], [1, 3]], id="equal before nearly equal"),
        pytest.param(BatchCost(1, 1, 0), [20, 12, 10], 99, [[0, 1, 2]], id="free padding"),
        pytest.param(BatchCost(1, 1, 1), [20, 12, 10], 99, [[0], [1], [2]], id="dear padding"),
        pytest.param(LIKE_TOKENS, [20, 14], 99, [[0, 1]], id="just worth it"),
        pytest.param(LIKE_TOKENS, [20, 13], 99, [[0], [1]], id="just not worth it"),
        pytest.param(BatchCost(1, 0, 0), [40, 5, 5, 5], 99, [[0, 1], [2, 3]], id="half is padding"),
        pytest.param(BatchCost(1, 1, 9), [7, 7, 7], 99, [[0, 1, 2]], id="none is padding"),
    ],
)
def test_batches(
    cost: BatchCost, lengths: list[int], max_batch_tokens: int, batches: list[list[int]]
) -> None:
    lane = lane_of(cost)
    assert drain(lane, max_batch_tokens, fill(lane, lengths)) == batches


LENGTHS = st.lists(st.integers(1, 64), min_size=1, max_size=60)
COSTS = st.builds(BatchCost, st.integers(1, 99), st.integers(0, 9), st.integers(0, 9))


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 200), st.sets(st.integers(0, 59)), COSTS)
def test_every_batch_holds_the_oldest_and_keeps_every_bound(
    lengths: list[int], max_batch_tokens: int, leaving: set[int], cost: BatchCost
) -> None:
    lane = lane_of(cost)
    slots = fill(lane, lengths)
    for index, slot in enumerate(slots):
        if index in leaving:
            lane.remove(slot)
    waiting = {number for number in range(len(lengths)) if number not in leaving}
    assert lane.queued_tokens == sum(lengths[number] for number in waiting)
    while waiting:
        batch = [slots.index(slot) for slot in lane.next_batch(max_batch_tokens)]
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


def test_a_single_text_does_not_wait_for_a_list_of_its_client() -> None:
    """Batches that another client's list begins leave the long texts of this client waiting."""
    lane = lane_of()
    lane.push(work_of(*[256] * 128, client="other"))
    lane.next_batch(512)
    lane.push(work_of(*[256] * 128, client="own"))
    lane.next_batch(512)
    lane.push(single := work_of(9, client="own"))
    batches = 0
    while single.waiting:
        lane.next_batch(512)
        batches += 1
    assert batches <= 3


def test_first_texts_of_other_clients_fill_a_batch() -> None:
    lane = lane_of()
    for client in "abc":
        lane.push(work_of(8, 8, client=client))
    clients = [slot.work.call.client for slot in lane.next_batch(48)]
    assert sorted(clients) == [*"aabbcc"]
