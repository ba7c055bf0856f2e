"""Failed batches in halves, outputs that cannot be right, and tasks of one caller."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.artifact.decomposition import DecomposedRows
from model.numerics.pooling import PoolingModes
from model.runtimes.contract import HeadScores
from service.engines.contract import (
    DecomposeTask,
    MapsTask,
    Output,
    Pooling,
    Target,
    TargetOutput,
    TextTask,
)
from service.errors import EngineFailed, EngineOutOfMemory, EngineUnavailable, ServiceError
from service.scheduler.call import Call
from service.scheduler.dispatch import MOST_RUNS, Isolation
from service.scheduler.outputs import check_outputs
from service.scheduler.queue import Work
from tests.service.harness import decomposition, text

pytestmark = pytest.mark.anyio


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


CROSS = MapsTask(np.zeros((4, 8), np.float32), np.zeros((6, 8), np.float32), 0, (2, 0, 1))


def test_maps_are_queries_by_keys() -> None:
    check_outputs([CROSS], [Output(maps=np.zeros((3, 4, 6), np.float32))], hidden_size=8)


@pytest.mark.parametrize("shape", [(3, 6, 4), (3, 4, 4), (3, 6, 6), (2, 4, 6), (4, 6)])
def test_maps_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(EngineFailed, match="wrong shape"):
        check_outputs([CROSS], [Output(maps=np.zeros(shape, np.float32))], hidden_size=8)


def test_products_of_values_are_of_every_key_and_of_two_heads() -> None:
    asked = dataclasses.replace(CROSS, values=True)
    maps, products = np.zeros((3, 4, 6), np.float32), np.zeros((6, 3, 3), np.float32)
    check_outputs([asked], [Output(maps=maps, value_products=products)], hidden_size=8)
    for wrong, reason in ((None, "left out"), (products[:4], "wrong shape")):
        with pytest.raises(EngineFailed, match=reason):
            check_outputs([asked], [Output(maps=maps, value_products=wrong)], hidden_size=8)


def test_scores_are_of_queries_and_keys_of_every_token() -> None:
    states = np.zeros((6, 8), np.float32)
    asked = MapsTask(states, states, 0, (2, 0, 1), scores=True)
    maps, vectors = np.zeros((3, 6, 6), np.float32), np.zeros((3, 6, 4), np.float32)
    good = HeadScores(vectors, vectors, maps)
    check_outputs([asked], [Output(maps=maps, head_scores=good)], hidden_size=8)
    for wrong, reason in (
        (None, "left out"),
        (HeadScores(vectors, vectors[:, :4], maps), "wrong shape"),
        (HeadScores(vectors[:2], vectors, maps), "wrong shape"),
        (HeadScores(vectors, vectors, maps[:, :4]), "wrong shape"),
        (HeadScores(vectors, vectors, maps + np.float32("nan")), "not finite"),
        (HeadScores(vectors, vectors + np.float32("inf"), maps), "not finite"),
    ):
        with pytest.raises(EngineFailed, match=reason):
            check_outputs([asked], [Output(maps=maps, head_scores=wrong)], hidden_size=8)


@pytest.mark.parametrize(("mode", "size"), [("mean", 8), (("mean",), 8), (("cls", "max"), 16)])
def test_a_pooled_vector_has_the_hidden_size_a_mode(mode: PoolingModes, size: int) -> None:
    ids = np.zeros(3, np.int64)
    task = TextTask(ids, ids, pooling=Pooling(1, mode))
    check_outputs([task], [Output(pooled=np.zeros(size, np.float32))], hidden_size=8)
    with pytest.raises(EngineFailed, match="wrong shape"):
        check_outputs([task], [Output(pooled=np.zeros(size + 1, np.float32))], hidden_size=8)


SCORED = TextTask(np.zeros(4, np.int64), np.zeros(4, np.int64), scores=(4, 3))


def test_scores_have_the_shape_that_was_asked_for() -> None:
    check_outputs([SCORED], [Output(scores=np.zeros((4, 3), np.float32))], hidden_size=8)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (4, 4)])
def test_scores_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(EngineFailed, match="wrong shape"):
        check_outputs([SCORED], [Output(scores=np.zeros(shape, np.float32))], hidden_size=8)


def test_scores_that_are_missing_or_not_finite_are_refused() -> None:
    with pytest.raises(EngineFailed, match="left out"):
        check_outputs([SCORED], [Output()], hidden_size=8)
    with pytest.raises(EngineFailed, match="not finite"):
        check_outputs([SCORED], [Output(scores=np.full((4, 3), np.nan, np.float32))], 8)


AIMED = TextTask(
    np.zeros(4, np.int64),
    np.zeros(4, np.int64),
    hidden_layers=(2,),
    target=Target(np.zeros(3, np.int64), (0, 1), (0,), logprobs=True),
)


def states(*tokens: int) -> list[NDArray[np.float32]]:
    return [np.zeros((count, 8), np.float32) for count in tokens]


def test_what_a_target_was_asked_for_has_its_length_and_the_text_its_own() -> None:
    found = TargetOutput(states(3, 3), states(3), np.zeros(3, np.float32))
    check_outputs([AIMED], [Output(states(4), target=found)], hidden_size=8)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "left out"),
        (TargetOutput(states(3), states(3, 3), np.zeros(3, np.float32)), "left out"),
        (TargetOutput(states(3, 3), states(), np.zeros(3, np.float32)), "left out"),
        (TargetOutput(states(3, 3), states(3)), "left out"),
        (TargetOutput(states(3, 4), states(3), np.zeros(3, np.float32)), "wrong shape"),
        (TargetOutput(states(3, 3), states(4), np.zeros(3, np.float32)), "wrong shape"),
        (TargetOutput(states(3, 3), states(3), np.zeros(4, np.float32)), "wrong shape"),
        (TargetOutput(states(3, 3), states(3), np.full(3, -np.inf, np.float32)), "not finite"),
    ],
)
def test_wrong_answers_to_a_target_are_refused(found: TargetOutput | None, reason: str) -> None:
    with pytest.raises(EngineFailed, match=reason):
        check_outputs([AIMED], [Output(states(4), target=found)], hidden_size=8)


ROWS = decomposition(length=4, rows=2)
LAST = decomposition(length=4, rows=2, layer=1)


def rows(*parts: int, values: tuple[int, ...] | None = None) -> DecomposedRows:
    of_next = None if values is None else np.zeros(values, np.float32)
    return DecomposedRows(np.zeros(parts, np.float32), of_next)


def test_rows_of_a_decomposition_stay_as_many_and_have_values_but_after_the_last_layer() -> None:
    found = [
        Output(decomposed=rows(2, 5, 8, values=(2, 2, 5, 4))),
        Output(decomposed=rows(2, 5, 8)),
    ]
    check_outputs([ROWS, LAST], found, hidden_size=8)


@pytest.mark.parametrize(
    ("task", "found", "reason"),
    [
        (ROWS, None, "left out"),
        (ROWS, rows(2, 5, 8), "left out"),
        (LAST, rows(2, 5, 8, values=(2, 2, 5, 4)), "left out"),
        (LAST, rows(3, 5, 8), "wrong shape"),
        (ROWS, rows(2, 5, 8, values=(2, 3, 5, 4)), "wrong shape"),
        (ROWS, rows(2, 5, 8, values=(1, 2, 5, 4)), "wrong shape"),
        (LAST, DecomposedRows(np.full((2, 5, 8), np.nan, np.float32), None), "not finite"),
    ],
)
def test_wrong_rows_of_a_decomposition_are_refused(
    task: DecomposeTask, found: DecomposedRows | None, reason: str
) -> None:
    with pytest.raises(EngineFailed, match=reason):
        check_outputs([task], [Output(decomposed=found)], hidden_size=8)


async def test_one_failure_is_that_of_all_and_the_first() -> None:
    work = Work([text(3), text(4)], Call())
    work.fail(EngineFailed("the first"))
    work.fail(EngineFailed("the second"))
    with pytest.raises(EngineFailed, match="the first"):
        await work.future


async def test_it_is_due_when_it_should_have_begun_and_then_when_it_should_have_ended() -> None:
    now = time.monotonic()
    call = Call(finish_by=now + 50)
    work = Work([text(3)], call, wait_seconds=5)
    assert work.due == pytest.approx(now + 5, abs=1)
    work.begin()
    assert work.due == now + 50
    patient = Work([text(3)], Call(), wait_seconds=math.inf)
    assert patient.due == math.inf
    late = Work([text(3)], call, wait_seconds=100)
    assert late.due == now + 50
