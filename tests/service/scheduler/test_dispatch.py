"""Start and order of batches, busy time of the lanes, delivery of results, and closing."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engines.contract import Output, Task
from service.engines.fake import FakeEngine
from service.errors import EngineFailed, EngineTimeout, EngineUnavailable, ServiceError
from service.scheduler.call import ANYBODY
from service.scheduler.lanes import LaneName
from service.scheduler.scheduler import Scheduler
from tests.service.harness import (
    CONFIG,
    GatedEngine,
    Recorder,
    assert_same,
    batching,
    layer_maps,
    text,
    until,
)
from tests.service.scheduler.requests import FakeClock, ask, busy, queued, resume

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("running", "come", "beside"),
    [
        ((300,) * 8, (60, 5, 65), [60]),  # one more call, not two
        ((300,) * 8, (65, 5), []),
        ((100,) * 2, (10,), []),
    ],
)
async def test_a_short_text_goes_beside_long_batches_where_the_engine_spares_a_call(
    running: tuple[int, ...], come: tuple[int, ...], beside: list[int]
) -> None:
    engine = GatedEngine(concurrency=2)
    engine.spare_calls = 1
    with batching(engine, max_batch_tokens=running[0]) as (batcher, _):
        long = ask(batcher, "encode", *running)
        await until(lambda: len(engine.batches) == 2)
        short = [ask(batcher, "encode", length) for length in come]
        await until(lambda: engine.batches[2:] == ([beside] if beside else []))
        await asyncio.sleep(0.02)
        assert len(engine.batches) == 2 + bool(beside)
        engine.let_through()
        await asyncio.gather(long, *short)
        assert batcher.close()


async def test_short_texts_one_after_another_each_go_beside_a_long_batch() -> None:
    """The rest of a list does not catch up before the end of the batch beside which they run."""
    ends = threading.Event()

    class Spare(FakeEngine):
        spare_calls = 1

        def run(self, tasks: Sequence[Task]) -> list[Output]:
            assert tasks[0].tokens < 130 or ends.wait(60)
            return super().run(tasks)

    with batching(Spare(CONFIG), max_batch_tokens=130) as (batcher, _):
        long = ask(batcher, "encode", *[130] * 4)
        await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.wait_for(ask(batcher, "encode", 5), 20)
        ends.set()
        await long


async def test_a_batch_counts_as_running_before_its_thread_starts() -> None:
    engine = GatedEngine()
    engine.spare_calls = 1
    with batching(engine) as (batcher, _):
        requests = [ask(batcher, "encode", length) for length in (300, 5)]
        await asyncio.sleep(0)  # in which no thread has computed anything
        assert batcher.lanes["encode"].queued_texts == 0  # the short one goes beside
        engine.let_through()
        await asyncio.gather(*requests)


async def test_maps_go_before_whatever_waits_of_any_length_in_order() -> None:
    async with busy(max_batch_tokens=20, max_queue_tokens=102) as (batcher, engine, _):
        waiting = [ask(batcher, "attention", length) for length in (8, 20, 15, 8)]
        await queued(batcher, 51, "attention")
        more = [resume(batcher, *lengths) for lengths in [(15, 19), (15, 8, 13)]]
        await queued(batcher, 51 + 70, "attention")  # a full queue does not refuse them
        engine.let_through()
        for done, lengths in zip(await asyncio.gather(*more), [(15, 19), (15, 8, 13)], strict=True):
            for length, one in zip(lengths, done, strict=True):
                assert_same(one.value, engine.expected(layer_maps(length)))
        await asyncio.gather(*waiting)
    assert engine.batches == [[1], [15], [19], [15], [8], [13], [8, 8], [20], [15]]


@pytest.mark.parametrize("concurrency", [1, 2, 5])
async def test_never_more_batches_at_once_than_the_engine_takes(concurrency: int) -> None:
    engine, lanes = GatedEngine(concurrency), list[LaneName](["encode", "attention"])
    with batching(engine, max_batch_tokens=8) as (batcher, _):
        requests = [ask(batcher, lane, 8) for lane in lanes for _ in range(10)]
        for begun in range(concurrency, 2 * concurrency):
            await until(lambda begun=begun: len(engine.batches) == begun)
            await asyncio.sleep(0.01)
            assert len(engine.batches) == begun  # at once, and no more
            engine.let_through(1)
        engine.let_through()
        await asyncio.gather(*requests)


async def test_times_are_measured() -> None:
    engine = FakeEngine(CONFIG, batch_seconds=0.05)
    with batching(engine, max_batch_tokens=8) as (batcher, _):
        started = time.monotonic()
        assert batcher.last_success < started - 10**6
        first, second = await batcher.submit("encode", [text(8), text(8)])
        elapsed = time.monotonic() - started
        assert started <= batcher.last_success <= time.monotonic()
    assert first.queue_seconds >= 0
    assert first.inference_seconds >= 0.05
    assert second.inference_seconds >= 0.05
    assert second.queue_seconds >= first.queue_seconds + first.inference_seconds
    assert second.queue_seconds + second.inference_seconds <= elapsed


async def test_closing_waits_for_what_runs_and_refuses_what_waits_and_comes() -> None:
    async with busy() as (batcher, engine, _):
        waiting = [ask(batcher, "encode", 9), resume(batcher, 9)]
        await queued(batcher, 9)
        closing = asyncio.create_task(asyncio.to_thread(batcher.close))
        for request in waiting:
            with pytest.raises(EngineUnavailable, match="stopping"):
                await request
        for request in (ask(batcher, "encode", 7), resume(batcher, 7)):
            with pytest.raises(EngineUnavailable, match="stopping"):
                await request
        assert not engine.closed
        engine.let_through()
        assert await closing
        assert engine.closed
    assert engine.batches == [[1]]


async def test_workers_take_their_next_batch_without_the_event_loop() -> None:
    engine = FakeEngine(CONFIG, batch_seconds=0.005)
    with batching(engine, max_batch_tokens=8) as (batcher, recorder):
        request = asyncio.create_task(batcher.submit("encode", [text(8)] * 10))
        await asyncio.sleep(0)
        deadline = time.monotonic() + 20
        while batcher.lanes["encode"].queued_tokens:  # the loop is busy with something else
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert recorder.finished == []  # reported, and answered, on the loop only
        assert len(await request) == 10


TOKENS: dict[LaneName, int] = {"encode": 8, "attention": 7}
"""Tokens of a text, and of a batch, of each lane."""
BATCH_SECONDS = {8: 0.010, 7: 0.070}


class Clockwork(GatedEngine):
    """Engine whose batches take 10 or 70 ms of the fake clock, by their tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.clock = FakeClock(monkeypatch)

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        outputs = super().run(tasks)
        self.clock.now += BATCH_SECONDS[tasks[0].tokens]
        return outputs


async def answered(engine: Clockwork, batcher: Scheduler, *floods: tuple[LaneName, int]) -> None:
    """Queue all batches of some floods before the first is computed, and wait for all."""
    requests = [ask(batcher, lane, TOKENS[lane]) for lane, count in floods for _ in range(count)]
    await asyncio.sleep(0)  # in which each is queued
    engine.let_through(len(requests))
    await asyncio.gather(*requests)


def share(recorder: Recorder, seconds: float, since: int = 0) -> float:
    """Return the share of /encode in the busy time of the batches from `since` on."""
    busy = {"encode": 0.0, "attention": 0.0}
    for lane, _, taken in recorder.finished[since:]:
        if sum(busy.values()) >= seconds:
            break
        busy[lane] += taken
    assert sum(busy.values()) >= seconds, "too few batches to tell"
    return busy["encode"] / sum(busy.values())


async def test_a_flood_of_both_leaves_encode_three_quarters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Clockwork(monkeypatch)
    with batching(engine, max_batch_tokens=8) as (batcher, recorder):
        await answered(engine, batcher, ("attention", 40), ("encode", 400))
    assert share(recorder, seconds=4) == pytest.approx(0.75, abs=0.03)
    for moment in range(0, 200, 20):  # at any time, not only on the whole
        assert share(recorder, seconds=1, since=moment) == pytest.approx(0.75, abs=0.1)


@pytest.mark.parametrize("one_by_one", [True, False], ids=["one by one", "flood"])
@pytest.mark.parametrize(
    ("alone", "first"),
    [("encode", "attention"), ("encode", "encode"), ("attention", "encode")],
)
async def test_an_idle_lane_builds_up_no_credit(
    alone: LaneName, first: LaneName, one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Clockwork(monkeypatch)
    with batching(engine, max_batch_tokens=8) as (batcher, recorder):
        for _ in range(200 if one_by_one else 1):  # the queue may be empty at each arrival
            await answered(engine, batcher, (alone, 1 if one_by_one else 200))
        then: LaneName = "encode" if first == "attention" else "attention"
        await answered(engine, batcher, (first, 100), (then, 100))
    assert share(recorder, seconds=1, since=200) == pytest.approx(0.75, abs=0.12)


async def test_outputs_are_reduced_each_in_its_way_in_a_workers_thread() -> None:
    threads: set[str] = set()

    def shape(output: Output) -> Any:
        threads.add(threading.current_thread().name)
        return np.shape(output.maps)

    tasks = [layer_maps(n, heads=heads) for n, heads in [(5, (0, 1)), (7, (1,)), (5, (0,))]]
    with batching(FakeEngine(CONFIG, concurrency=2)) as (batcher, _):
        reduce = [lambda output: float(np.sum(output.maps)), shape, shape]
        done = await batcher.submit("attention", tasks, ANYBODY, reduce, resumed=True)
        values = [one.value for one in done]
        assert values == [pytest.approx(10, rel=1e-5), (1, 7, 7), (1, 5, 5)]
        assert all(one.inference_seconds > 0 for one in done)
    assert threads
    assert all(name.startswith("fake-engine") for name in threads)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ZeroDivisionError("c4n4ry"), "the engine raised ZeroDivisionError"),
        (MemoryError("c4n4ry"), "there is no memory left"),
        (SystemExit("c4n4ry"), "the engine raised SystemExit"),
        (EngineTimeout("late"), "late"),
    ],
)
async def test_a_reduction_that_raises_fails_its_own_batch_alone(
    error: BaseException, says: str
) -> None:
    def fail(_: Output) -> None:
        raise error

    async with busy(max_batch_tokens=16) as (batcher, engine, recorder):
        tasks = [layer_maps(8, seed) for seed in range(4)]  # two batches, and the first one fails
        reduce = [lambda _: None, fail, *[lambda _: None] * 2]
        broken = asyncio.create_task(
            batcher.submit("attention", tasks, ANYBODY, reduce, resumed=True)
        )
        whole, other = resume(batcher, 16), ask(batcher, "encode", 8)
        await queued(batcher, 48, "attention")
        engine.let_through()
        with pytest.raises(ServiceError) as failed:
            await broken
        assert failed.value.detail == says
        assert_same((await whole)[0].value, engine.expected(layer_maps(16)))
        assert_same((await other)[0].value, engine.expected(text(8)))
        assert recorder.failed == ["attention"]
        assert recorder.drops == []  # their texts have been computed already
        assert batcher.lanes["attention"].queued_tokens == 0
        assert len(await resume(batcher, 8)) == 1


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Watched(FakeEngine):
    """Engine that holds weak references to its outputs."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.outputs: list[weakref.ref[np.ndarray]] = []

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        outputs = super().run(tasks)
        self.outputs += [weakref.ref(array) for output in outputs for array in output.hidden]
        return outputs

    def kept(self) -> int:
        return sum(reference() is not None for reference in self.outputs)


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("reduced", [False, True])
async def test_an_answered_request_keeps_nothing(reduced: bool) -> None:
    engine = Watched()
    with batching(engine) as (batcher, _):
        for _ in range(5):
            tasks = [text(8, hidden_layers=(0, 1)) for _ in range(3)]
            if reduced:
                reduce = [lambda output: len(output.hidden)] * 3
                done = await batcher.submit("attention", tasks, ANYBODY, reduce, resumed=True)
                assert [item.value for item in done] == [2, 2, 2]
            else:
                await batcher.submit("encode", tasks)
        await until(lambda: batcher._idle[False] == engine.concurrency)
        assert len(engine.outputs) == 30
        await until(lambda: engine.kept() == 0, seconds=2)


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
                    request = batcher.submit(lane, tasks, resumed=how == "resumes")
                    requests.append((asyncio.create_task(request), tasks))
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
    await until(lambda: batcher._idle[False] == batcher.engine.concurrency)
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
