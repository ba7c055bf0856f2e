"""Failed batches in halves, outputs that cannot be right, and tasks of one caller."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import threading
import time
from collections.abc import Collection, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
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
    Task,
    TextTask,
)
from service.engines.fake import FakeEngine
from service.errors import EngineFailed, EngineOutOfMemory, EngineUnavailable, ServiceError
from service.scheduler.call import Call
from service.scheduler.dispatch import MOST_RUNS
from service.scheduler.outputs import check_outputs
from service.scheduler.queue import Work
from tests.service.harness import CONFIG, assert_same, batching, decomposition, text

pytestmark = pytest.mark.anyio


class Engine(FakeEngine):
    """Engine that fails over some numbers, which are the first ids of texts, or over too many.

    Its first batch, of the number 999, waits until the test opens the gate.
    """

    def __init__(
        self, bad: Collection[int] = (), room: int = 10**9, error: ServiceError | None = None
    ) -> None:
        super().__init__(CONFIG)
        self.bad, self.room, self.error = bad, room, error or EngineFailed("bad")
        self.batches: list[list[int]] = []
        self.gate = threading.Event()

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        numbers = [int(task.input_ids[0]) for task in tasks if isinstance(task, TextTask)]
        if numbers == [PLUG]:
            assert self.gate.wait(60)
            return super().run(tasks)
        self.batches.append(numbers)
        if len(tasks) > self.room:
            raise EngineOutOfMemory("full")
        if any(number in self.bad for number in numbers):
            raise self.error
        return super().run(tasks)


PLUG = 999
Outcome = dict[int, bool | type[ServiceError]]


def numbered(number: int) -> TextTask:
    ids = np.full(4, number, np.int64)
    return TextTask(ids, np.zeros_like(ids), pooling=Pooling(2, "mean"))


async def outcomes(
    engine: Engine, calls: Sequence[Sequence[int]], leaving: Collection[int] = ()
) -> Outcome:
    """Return whether each text of one batch had the right answer, or the type of its error.

    Calls of these places leave while the batch is computed for the first time.
    """
    found: Outcome = {}
    with batching(engine, max_batch_tokens=10**6) as (scheduler, _):
        plug = asyncio.create_task(scheduler.submit("encode", [numbered(PLUG)]))
        await asyncio.sleep(0)
        requests = [
            asyncio.create_task(scheduler.submit("encode", [numbered(n) for n in numbers]))
            for numbers in calls
        ]
        await asyncio.sleep(0)
        run = engine.run

        def leave(tasks: Sequence[Task]) -> list[Output]:
            if leaving and not engine.batches and tasks[0].input_ids[0] != PLUG:  # type: ignore[union-attr]
                loop.call_soon_threadsafe(lambda: [requests[place].cancel() for place in leaving])
                left.wait(60)
            return run(tasks)

        loop, left = asyncio.get_running_loop(), threading.Event()
        engine.run = leave  # type: ignore[method-assign]
        engine.gate.set()
        if leaving:
            await asyncio.wait([requests[place] for place in leaving])
            left.set()
        await plug
        for numbers, request in zip(calls, requests, strict=True):
            try:
                slots = await request
            except ServiceError as error:
                found |= dict.fromkeys(numbers, type(error))
            except asyncio.CancelledError:
                continue
            else:
                for number, slot in zip(numbers, slots, strict=True):
                    assert_same(slot.value, engine.expected(numbered(number)))
                    found[number] = True
    return found


def each_alone(size: int) -> list[list[int]]:
    return [[number] for number in range(size)]


async def test_a_batch_that_works_is_run_once() -> None:
    engine = Engine()
    assert await outcomes(engine, each_alone(5)) == dict.fromkeys(range(5), True)
    assert engine.batches == [[0, 1, 2, 3, 4]]


@settings(max_examples=25, deadline=None)
@given(size=st.integers(2, 128), data=st.data())
def test_one_bad_text_fails_alone(size: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, size - 1))
    engine = Engine({bad})
    found = asyncio.run(outcomes(engine, each_alone(size)))
    assert found == {n: EngineFailed if n == bad else True for n in range(size)}
    assert len(engine.batches) <= 2 * math.ceil(math.log2(size)) + 1


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 64), bad=st.sets(st.integers(0, 63)))
def test_every_text_has_one_outcome_and_no_bad_one_is_answered(size: int, bad: set[int]) -> None:
    engine = Engine(bad)
    found = asyncio.run(outcomes(engine, each_alone(size)))
    assert found.keys() == set(range(size))
    assert all(found[number] is EngineFailed for number in found if number in bad)
    assert len(engine.batches) <= 2 * MOST_RUNS


async def test_where_everything_fails_the_engine_is_not_asked_for_ever() -> None:
    engine = Engine(set(range(500)))
    assert set((await outcomes(engine, each_alone(500))).values()) == {EngineFailed}
    assert len(engine.batches) <= MOST_RUNS + math.ceil(math.log2(500))


async def test_an_error_that_does_not_come_again_hurts_nobody() -> None:
    engine = Engine({0})
    run = engine.run

    def once(tasks: Sequence[Task]) -> list[Output]:
        if engine.batches:
            engine.bad = set()
        return run(tasks)

    engine.run = once  # type: ignore[method-assign]
    assert await outcomes(engine, each_alone(4)) == dict.fromkeys(range(4), True)
    assert engine.batches == [[0, 1, 2, 3], [0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("room", "failed"), [(8, 0), (4, 0), (3, 8), (1, 8)], ids=["fits", "halves", "less", "one"]
)
async def test_out_of_memory_is_halved_once(room: int, failed: int) -> None:
    engine = Engine(room=room)
    found = await outcomes(engine, [range(8)])
    assert sum(result is EngineOutOfMemory for result in found.values()) == failed
    sizes = [len(batch) for batch in engine.batches]
    expected = [8] if room == 8 else [8, 4, 4]
    assert sizes == expected[: len(sizes)]  # the second half is left out if the call has failed
    assert failed or sizes == expected


async def test_what_one_call_waits_for_fails_whole() -> None:
    engine = Engine({3})
    assert set((await outcomes(engine, [range(8)])).values()) == {EngineFailed}
    assert len(engine.batches) == 1


async def test_nothing_is_run_again_for_a_client_who_left() -> None:
    engine = Engine({0})
    found = await outcomes(engine, each_alone(4), leaving={1, 2, 3})
    assert found == {0: EngineFailed}
    assert engine.batches == [[0, 1, 2, 3], [0]]


async def test_an_engine_that_is_gone_is_not_asked_again() -> None:
    engine = Engine({0}, error=EngineUnavailable("gone"))
    found = await outcomes(engine, each_alone(4))
    assert (found, len(engine.batches)) == (dict.fromkeys(range(4), EngineUnavailable), 1)


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
