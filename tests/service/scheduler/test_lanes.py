"""Choice of the waiting texts for a batch."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engines.contract import BatchCost
from service.scheduler.lanes import MAX_PADDING_SHARE, WINDOW_BATCHES, Lane
from service.scheduler.submission import Caller, Entry, Submission
from tests.service.harness import text


def fill(lane: Lane, lengths: list[int]) -> list[Entry]:
    """Queue a request of one text for each length."""

    async def submit() -> list[Submission]:
        numbers = itertools.count()
        return [Submission([text(length)], numbers, Caller()) for length in lengths]

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
        submission = Submission([text(length) for length in lengths], numbers, Caller(client))
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
            lane.push(Submission([text(8), text(8)], numbers, Caller(client)))

    asyncio.run(push())
    clients = [entry.submission.caller.client for entry in lane.take(48)]
    assert sorted(clients) == [*"aabbcc"]
