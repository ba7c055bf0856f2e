"""Failed batches in halves: results, failures, and the number of the engine's calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import EngineFailed, EngineOutOfMemory, EngineUnavailable, ServiceError
from service.scheduler.isolation import MOST_RUNS, Isolation


class Engine:
    """Engine that fails over some numbers, or over too many of them."""

    def __init__(self, bad: Collection[int] = (), room: int = 10**9) -> None:
        self.bad, self.room = bad, room
        self.batches: list[list[int]] = []

    def __call__(self, batch: Sequence[int]) -> list[Any]:
        self.batches.append([*batch])
        if len(batch) > self.room:
            raise EngineOutOfMemory("full")
        if any(number in self.bad for number in batch):
            raise EngineFailed("bad")
        return [10 * number for number in batch]


def isolated(
    batch: Sequence[int],
    run: Callable[[Sequence[int]], list[Any]],
    wanted: Callable[[int], bool] = lambda _: True,
    shared: Callable[[Sequence[int]], bool] = lambda _: True,
) -> list[tuple[Sequence[int], list[Any] | ServiceError]]:
    """Return the parts of a batch that were not halved, each with its outputs or its error."""
    isolation, done = Isolation(batch, wanted, shared), []
    for part in isolation.parts():
        result: list[Any] | ServiceError
        try:
            result = run(part)
        except ServiceError as error:
            if isolation.halve(part, error):
                continue
            result = error
        done.append((part, result))
    return done


def outcome(
    engine: Engine, batch: Sequence[int], **asked: Any
) -> dict[int, int | type[ServiceError]]:
    found: dict[int, int | type[ServiceError]] = {}
    for part, result in isolated(batch, engine, **asked):
        for index, number in enumerate(part):
            assert number not in found, "answered twice"
            found[number] = type(result) if isinstance(result, ServiceError) else result[index]
    return found


def test_a_batch_that_works_is_run_once() -> None:
    engine = Engine()
    assert outcome(engine, range(5)) == {n: 10 * n for n in range(5)}
    assert engine.batches == [[0, 1, 2, 3, 4]]


@given(size=st.integers(2, 128), data=st.data())
def test_one_bad_item_fails_alone(size: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, size - 1))
    engine = Engine({bad})
    found = outcome(engine, range(size))
    assert found == {n: EngineFailed if n == bad else 10 * n for n in range(size)}
    assert len(engine.batches) <= 2 * math.ceil(math.log2(size)) + 1


@given(size=st.integers(1, 64), bad=st.sets(st.integers(0, 63)))
def test_every_item_has_one_outcome_and_no_bad_one_is_answered(size: int, bad: set[int]) -> None:
    engine = Engine(bad)
    found = outcome(engine, range(size))
    assert found.keys() == set(range(size))
    for number, result in found.items():
        assert result == EngineFailed or (result == 10 * number and number not in bad)
    assert len(engine.batches) <= 2 * MOST_RUNS


def test_where_everything_fails_the_engine_is_not_asked_for_ever() -> None:
    engine = Engine(range(1000))
    assert set(outcome(engine, range(1000)).values()) == {EngineFailed}
    assert len(engine.batches) <= MOST_RUNS + math.ceil(math.log2(1000))


def test_an_error_that_does_not_come_again_hurts_nobody() -> None:
    engine = Engine()

    def once(batch: Sequence[int]) -> list[Any]:
        outputs = engine(batch)
        if len(engine.batches) == 1:
            raise EngineFailed("this once")
        return outputs

    parts = isolated(range(4), once)
    assert parts == [([0, 1], [0, 10]), ([2, 3], [20, 30])]


@pytest.mark.parametrize(
    ("room", "failed"), [(8, 0), (4, 0), (3, 8), (1, 8)], ids=["fits", "halves", "less", "one"]
)
def test_out_of_memory_is_halved_once(room: int, failed: int) -> None:
    engine = Engine(room=room)
    found = outcome(engine, range(8), shared=lambda _: False)
    assert sum(result == EngineOutOfMemory for result in found.values()) == failed
    assert [len(batch) for batch in engine.batches] == ([8] if room == 8 else [8, 4, 4])


def test_what_one_caller_waits_for_fails_whole() -> None:
    engine = Engine({3})
    assert set(outcome(engine, range(8), shared=lambda _: False).values()) == {EngineFailed}
    assert len(engine.batches) == 1


def test_nothing_is_run_again_for_who_left() -> None:
    engine = Engine({0})
    found = outcome(engine, range(4), wanted=lambda number: number == 0)
    assert found == {0: EngineFailed}
    assert engine.batches == [[0, 1, 2, 3], [0]]


def test_an_engine_that_is_gone_is_not_asked_again() -> None:
    batches = []

    def gone(batch: Sequence[int]) -> list[Any]:
        batches.append(batch)
        raise EngineUnavailable("gone")

    ((part, error),) = isolated(range(4), gone)
    assert (part, type(error), len(batches)) == (range(4), EngineUnavailable, 1)
