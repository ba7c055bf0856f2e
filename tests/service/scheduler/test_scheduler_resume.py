"""Continued requests, and one result for each request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engines.contract import Output, Task
from service.engines.fake import FakeEngine
from service.errors import (
    EngineFailed,
    EngineOutOfMemory,
    EngineTimeout,
    Overloaded,
)
from service.scheduler.lanes import LaneName
from service.scheduler.scheduler import Scheduler
from tests.service.harness import (
    CONFIG,
    AnsweringEngine,
    GatedEngine,
    assert_same,
    batching,
    layer_maps,
    text,
    until,
)

pytestmark = pytest.mark.anyio


async def test_it_goes_before_whatever_waits_of_any_length_in_order() -> None:
    engine = GatedEngine()
    with batching(engine, max_batch_tokens=20) as (batcher, _):
        plug = asyncio.create_task(batcher.submit("attention", [text(1)]))
        await until(lambda: engine.batches)
        waiting = [
            asyncio.create_task(batcher.submit("attention", [text(length)]))
            for length in (8, 20, 15, 8)
        ]
        await until(lambda: batcher.lanes["attention"].queued_tokens == 51)
        more = [
            asyncio.create_task(batcher.resume("attention", [layer_maps(n) for n in lengths]))
            for lengths in [(15, 19), (15, 8, 13)]
        ]
        await until(lambda: batcher.lanes["attention"].queued_tokens == 51 + 70)
        engine.let_through()
        for done, lengths in zip(await asyncio.gather(*more), [(15, 19), (15, 8, 13)], strict=True):
            for length, one in zip(lengths, done, strict=True):
                assert_same(one.value, engine.expected(layer_maps(length)))
        await asyncio.gather(plug, *waiting)
    assert engine.batches == [[1], [15], [19], [15], [8], [13], [8, 8], [20], [15]]


async def test_of_equals_the_first_to_come_goes_first() -> None:
    engine = AnsweringEngine(lambda _: None)
    order: list[int] = []
    with batching(engine, max_batch_tokens=8) as (batcher, _):
        engine.answer = lambda _: threading.Event().wait(0.02) or None
        plug = asyncio.create_task(batcher.submit("attention", [text(8)]))
        await until(lambda: engine.batches)

        async def more(number: int) -> None:
            await batcher.resume("attention", [layer_maps(8)])
            order.append(number)

        await asyncio.gather(plug, *(more(number) for number in range(6)))
    assert order == [0, 1, 2, 3, 4, 5]


async def test_a_full_queue_does_not_refuse_it() -> None:
    engine = GatedEngine()
    with batching(engine, max_queue_tokens=40) as (batcher, _):
        plug = asyncio.create_task(batcher.submit("attention", [text(1)]))
        await until(lambda: engine.batches)
        waiting = asyncio.create_task(batcher.submit("attention", [text(20)]))
        await until(lambda: batcher.lanes["attention"].queued_tokens == 20)
        with pytest.raises(Overloaded):
            await batcher.submit("attention", [text(11)])
        more = asyncio.create_task(batcher.resume("attention", [layer_maps(30), layer_maps(5)]))
        await until(lambda: batcher.lanes["attention"].queued_tokens == 55)
        engine.let_through()
        await asyncio.gather(plug, waiting, more)
    assert engine.batches == [[1], [30], [5], [20]]


async def test_who_leaves_is_dropped() -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, recorder):
        plug = asyncio.create_task(batcher.submit("attention", [text(1)]))
        await until(lambda: engine.batches)
        more = asyncio.create_task(batcher.resume("attention", [layer_maps(8), layer_maps(9)]))
        stays = asyncio.create_task(batcher.resume("attention", [layer_maps(9, 1)]))
        await until(lambda: batcher.lanes["attention"].queued_tokens == 26)
        more.cancel()
        await asyncio.gather(more, return_exceptions=True)
        assert batcher.lanes["attention"].queued_tokens == 9
        assert recorder.drops == []  # their texts have been computed already
        engine.let_through()
        await plug
        assert_same((await stays)[0].value, engine.expected(layer_maps(9, 1)))
    assert engine.batches == [[1], [9]]


async def test_outputs_are_reduced_each_in_its_way_in_a_workers_thread() -> None:
    threads: set[str] = set()

    def total(output: Output) -> tuple[str, float]:
        threads.add(threading.current_thread().name)
        return "total", float(np.sum(output.maps))

    def shape(output: Output) -> tuple[str, Any]:
        threads.add(threading.current_thread().name)
        return "shape", np.shape(output.maps)

    tasks = [layer_maps(n, heads=heads) for n, heads in [(5, (0, 1)), (7, (1,)), (5, (0,))]]
    with batching(FakeEngine(CONFIG, concurrency=2)) as (batcher, _):
        done = await batcher.resume("attention", tasks, [total, shape, shape])
        assert [one.value for one in done] == [
            ("total", pytest.approx(10, rel=1e-5)),
            ("shape", (1, 7, 7)),
            ("shape", (1, 5, 5)),
        ]
        assert all(one.inference_seconds > 0 for one in done)
        (plain,) = await batcher.resume("attention", tasks[:1])
        assert isinstance(plain.value, Output)
    assert threads
    assert all(name.startswith("fake-engine") for name in threads)


def failing(error: BaseException) -> Any:
    def fail(_: Output) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ZeroDivisionError("c4n4ry"), "the engine raised ZeroDivisionError"),
        (MemoryError("c4n4ry"), "there is no memory left"),
        (SystemExit("c4n4ry"), "the engine raised SystemExit"),
    ],
)
async def test_a_reduction_that_raises_fails_its_own_batch_alone(
    error: BaseException, says: str
) -> None:
    engine = GatedEngine()
    with batching(engine, max_batch_tokens=16) as (batcher, recorder):
        plug = asyncio.create_task(batcher.submit("attention", [text(1)]))
        await until(lambda: engine.batches)
        tasks = [layer_maps(8, seed) for seed in range(4)]  # two batches, and the first one fails
        reduce = [lambda output: output, failing(error), *[lambda output: output] * 2]
        broken = asyncio.create_task(batcher.resume("attention", tasks, reduce))
        whole = asyncio.create_task(batcher.resume("attention", [layer_maps(16)]))
        other = asyncio.create_task(batcher.submit("encode", [text(8)]))
        await until(lambda: sum(lane.queued_tokens for lane in batcher.lanes.values()) == 56)
        engine.let_through()
        with pytest.raises((EngineFailed, EngineOutOfMemory)) as failed:
            await broken
        assert failed.value.detail == says
        assert_same((await whole)[0].value, engine.expected(layer_maps(16)))
        assert_same((await other)[0].value, engine.expected(text(8)))
        await plug
        assert recorder.failed == ["attention"]
        assert recorder.drops == []  # their texts have been computed already
        assert batcher.lanes["attention"].queued_tokens == 0
        (again,) = await batcher.resume("attention", tasks[:1])
        assert_same(again.value, engine.expected(tasks[0]))


async def test_an_error_of_ours_arrives_as_it_is() -> None:
    late = failing(EngineTimeout("late"))
    with batching(FakeEngine(CONFIG)) as (batcher, _), pytest.raises(EngineTimeout, match="late"):
        await batcher.resume("attention", [layer_maps(8)], [late])


async def test_what_cannot_be_right_is_refused_before_it_is_reduced() -> None:
    reduced: list[Output] = []
    engine = AnsweringEngine(lambda tasks: [Output(maps=np.full((2, 8, 8), np.nan, "f4"))])
    with batching(engine) as (batcher, _), pytest.raises(EngineFailed, match="not finite"):
        await batcher.resume("attention", [layer_maps(8)], [reduced.append])
    assert reduced == []


POISON = 13
LENGTHS = st.lists(st.sampled_from([1, 4, 5, 8, 30, 64, 90]), min_size=1, max_size=5)
ARRIVES = st.tuples(st.just("arrives"), st.sampled_from(["encode", "attention"]), LENGTHS)
RESUMES = st.tuples(st.just("resumes"), st.sampled_from(["encode", "attention"]), LENGTHS)
FAILS = st.tuples(st.just("arrives"), st.just("encode"), st.just([8, POISON, 8]))
LEAVES = st.tuples(st.just("leaves"), st.integers(0, 50))
WAIT = st.tuples(st.just("wait"), st.integers(0, 3))
EVENTS = st.lists(st.one_of(ARRIVES, ARRIVES, ARRIVES, RESUMES, LEAVES, WAIT, FAILS), max_size=40)


class SometimesFailing(FakeEngine):
    def run(self, tasks: Sequence[Task]) -> list[Output]:
        if any(task.tokens == POISON for task in tasks):
            raise ValueError
        return super().run(tasks)


async def play(events: list[Any], concurrency: int) -> None:
    engine = SometimesFailing(CONFIG, concurrency=concurrency)
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
    with batching(engine, max_batch_tokens=64) as (batcher, recorder):
        requests: list[tuple[asyncio.Task[Any], list[Task]]] = []
        for event in events:
            match event:
                case ("arrives" | "resumes" as how, lane, lengths):
                    make = text if how == "arrives" else layer_maps
                    tasks = [make(n, len(requests) * 10 + i) for i, n in enumerate(lengths)]
                    ask = batcher.submit if how == "arrives" else batcher.resume
                    requests.append((asyncio.create_task(ask(lane, tasks)), tasks))
                case ("leaves", index) if requests:
                    requests[index % len(requests)][0].cancel()
                case ("wait", steps):
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    await asyncio.sleep(0.0005 * steps)
        async with asyncio.timeout(60):
            await asyncio.gather(*(request for request, _ in requests), return_exceptions=True)
        answered = check(engine, requests)
        await at_rest(batcher)
        computed = sum(len(lengths) for _, lengths, _ in recorder.finished)
        submitted = sum(len(tasks) for _, tasks in requests)
        assert answered <= computed <= submitted - len(recorder.drops)
        await assert_takes_work(batcher)
    assert complaints == []  # no future was resolved twice, no task died


def check(engine: FakeEngine, requests: list[tuple[asyncio.Task[Any], list[Task]]]) -> int:
    """Check that every request that was not cancelled has its own results or an error."""
    answered = 0
    for request, tasks in requests:
        if request.cancelled():
            continue
        if error := request.exception():
            assert isinstance(error, EngineFailed)
            continue
        for task, done in zip(tasks, request.result(), strict=True):
            assert_same(done.value, engine.expected(task))
        answered += len(tasks)
    return answered


async def at_rest(batcher: Scheduler) -> None:
    """Wait until every worker is idle and every batch was reported."""
    await until(lambda: batcher._dispatcher.idle == batcher.engine.concurrency)
    await asyncio.sleep(0)


async def assert_takes_work(batcher: Scheduler) -> None:
    """Check that nothing waits, and that every lane accepts work again."""
    for lane in batcher.lanes.values():
        assert lane.queued_tokens == 0
        assert lane.queued_texts == 0
    lanes: list[LaneName] = ["encode", "attention"]
    for lane_name in lanes:
        assert len(await batcher.submit(lane_name, [text(5)])) == 1


@given(EVENTS, st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_each_live_waiter_gets_its_own_answer_once(events: list[Any], concurrency: int) -> None:
    asyncio.run(play(events, concurrency))
