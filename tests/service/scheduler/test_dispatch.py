"""Start of batches, their number at once, busy time of the lanes, and delivery of results."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence

import pytest

from service.engines.contract import MapsTask, Output, Pooling, Task
from service.engines.fake import FakeEngine
from service.errors import EngineUnavailable
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
from tests.service.scheduler.clock import FakeClock

pytestmark = pytest.mark.anyio


async def test_a_text_alone_starts_at_once() -> None:
    engine = GatedEngine(concurrency=2)
    with batching(engine) as (batcher, _):
        first = asyncio.create_task(batcher.submit("encode", [text(5)]))
        await until(lambda: engine.batches == [[5]])
        second = asyncio.create_task(batcher.submit("encode", [text(5)]))
        await until(lambda: engine.batches == [[5], [5]])
        engine.let_through()
        await asyncio.gather(first, second)


async def test_a_short_text_goes_beside_long_batches_where_the_engine_spares_a_call() -> None:
    engine = GatedEngine(concurrency=2)
    engine.spare_calls = 1
    with batching(engine, max_batch_tokens=512) as (batcher, _):
        long = asyncio.create_task(batcher.submit("encode", [text(300)] * 8))
        await until(lambda: engine.batches == [[300], [300]])
        short = [asyncio.create_task(batcher.submit("encode", [text(n)])) for n in (60, 5, 65)]
        await until(lambda: engine.batches[2:] == [[60]])
        await asyncio.sleep(0.02)
        assert len(engine.batches) == 3  # one more call, not two
        engine.let_through()
        await asyncio.gather(long, *short)
        assert batcher.close()


async def test_a_batch_counts_as_running_before_its_thread_starts() -> None:
    engine = GatedEngine()
    engine.spare_calls = 1
    with batching(engine) as (batcher, _):
        requests = [asyncio.create_task(batcher.submit("encode", [text(n)])) for n in (300, 5)]
        await asyncio.sleep(0)  # in which no thread has computed anything
        assert batcher.lanes["encode"].queued_texts == 0  # the short one goes beside
        engine.let_through()
        await asyncio.gather(*requests)


@pytest.mark.parametrize(("running", "comes"), [(100, 10), (300, 65)])
async def test_no_call_is_spared_for_what_is_not_short_beside_what_is_long(
    running: int, comes: int
) -> None:
    engine = GatedEngine()
    engine.spare_calls = 1
    with batching(engine, max_batch_tokens=512) as (batcher, _):
        first = asyncio.create_task(batcher.submit("encode", [text(running)]))
        await until(lambda: engine.batches)
        second = asyncio.create_task(batcher.submit("encode", [text(comes)]))
        await until(lambda: batcher.lanes["encode"].queued_texts)
        await asyncio.sleep(0.02)
        assert engine.batches == [[running]]
        engine.let_through()
        await asyncio.gather(first, second)


async def test_what_arrives_meanwhile_makes_the_next_batch() -> None:
    engine = GatedEngine()
    with batching(engine, max_batch_tokens=64) as (batcher, recorder):
        waiting = [
            asyncio.create_task(batcher.submit("encode", [text(length)]))
            for length in (3, 8, 40, 8, 41, 9)
        ]
        await until(lambda: engine.batches)
        engine.let_through()
        await asyncio.gather(*waiting)
    assert engine.batches == [[3], [8, 8, 9], [40], [41]]
    assert [lengths for _, lengths, _ in recorder.finished] == engine.batches


async def test_a_request_larger_than_a_batch_keeps_its_order() -> None:
    engine = FakeEngine(CONFIG)
    texts = [text(length, seed) for seed, length in enumerate([30, 5, 60, 5, 64, 31, 200, 6])]
    with batching(engine, max_batch_tokens=64) as (batcher, recorder):
        done = await batcher.submit("encode", texts)
    assert len(recorder.finished) > 3
    for task, answer in zip(texts, done, strict=True):
        assert_same(answer.value, engine.expected(task))


@pytest.mark.parametrize("concurrency", [1, 2, 5])
async def test_never_more_batches_at_once_than_the_engine_takes(concurrency: int) -> None:
    class Counting(FakeEngine):
        running = most = 0
        lock, full = threading.Lock(), threading.Barrier(concurrency, timeout=60)

        def run(self, tasks: Sequence[Task]) -> list[Output]:
            with self.lock:
                self.running += 1
                self.most = max(self.most, self.running)
            self.full.wait()
            time.sleep(0.003)
            with self.lock:
                self.running -= 1
            return super().run(tasks)

    engine = Counting(CONFIG, concurrency=concurrency)
    with batching(engine, max_batch_tokens=8) as (batcher, _):
        requests = [batcher.submit("encode", [text(8, seed)]) for seed in range(30)]
        requests += [batcher.submit("attention", [text(8, seed)]) for seed in range(10)]
        await asyncio.gather(*requests)
    assert engine.most == concurrency


async def test_times_are_measured() -> None:
    engine = FakeEngine(CONFIG, batch_seconds=0.05)
    with batching(engine, max_batch_tokens=8) as (batcher, _):
        started = time.monotonic()
        first, second = await batcher.submit("encode", [text(8), text(8)])
        elapsed = time.monotonic() - started
    assert first.queue_seconds >= 0
    assert first.inference_seconds >= 0.05
    assert second.inference_seconds >= 0.05
    assert second.queue_seconds >= first.queue_seconds + first.inference_seconds
    assert second.queue_seconds + second.inference_seconds <= elapsed


async def test_success_is_remembered() -> None:
    with batching(FakeEngine(CONFIG)) as (batcher, _):
        assert batcher.last_success < time.monotonic() - 10**6
        asked = time.monotonic()
        await batcher.submit("encode", [text(8)])
        assert asked <= batcher.last_success <= time.monotonic()


async def test_closing_waits_for_the_running_batch_and_releases_the_engine() -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, _):
        request = asyncio.create_task(batcher.submit("encode", [text(8)]))
        await until(lambda: engine.batches)
        closing = asyncio.create_task(asyncio.to_thread(batcher.close))
        await asyncio.sleep(0.02)
        assert not engine.closed
        engine.let_through()
        await closing
        assert engine.closed
        assert len(await request) == 1


@pytest.mark.parametrize("resumed", [False, True])
async def test_closing_refuses_what_waits(resumed: bool) -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, _):
        send = batcher.resume if resumed else batcher.submit
        running = asyncio.create_task(batcher.submit("encode", [text(8)]))
        await until(lambda: engine.batches)
        waiting = asyncio.create_task(send("encode", [layer_maps(9) if resumed else text(9)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens == 9)
        closing = asyncio.create_task(asyncio.to_thread(batcher.close))
        with pytest.raises(EngineUnavailable, match="stopping"):
            await waiting
        with pytest.raises(EngineUnavailable, match="stopping"):
            await send("encode", [layer_maps(7) if resumed else text(7)])
        engine.let_through()
        await closing
        assert len(await running) == 1
    assert engine.batches == [[8]]


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


def random_task(chance: random.Random) -> Task:
    length, seed = chance.choice([1, 2, 7, 8, 9, 30, 64, 100]), chance.randrange(10**6)
    if chance.random() < 0.3:
        return layer_maps(length, seed, chance.randrange(2), chance.choice([(0,), (1, 0)]))
    asked = chance.choice(
        [
            {"pooling": Pooling(chance.randrange(3), chance.choice(["mean", "cls"]))},
            {"hidden_layers": (chance.randrange(3),)},
            {"hidden_layers": (0, 2), "pooling": Pooling(2, "max")},
            {"hidden_layers": (2,), "ablated": ((chance.randrange(2), chance.randrange(2)),)},
        ]
    )
    return text(length, seed, **asked)


async def test_64_submitters_get_their_own_answers() -> None:
    engine = FakeEngine(CONFIG, concurrency=3)

    async def submitter(number: int, batcher: Scheduler) -> int:
        chance, texts = random.Random(number), 0
        for _ in range(25):
            tasks = [random_task(chance) for _ in range(chance.randint(1, 4))]
            maps = any(isinstance(task, MapsTask) for task in tasks)
            if maps and chance.random() < 0.5:
                done = await batcher.resume("attention", tasks)
            else:
                done = await batcher.submit("attention" if maps else "encode", tasks)
            for task, answer in zip(tasks, done, strict=True):
                assert_same(answer.value, engine.expected(task))
            texts += len(tasks)
        return texts

    with batching(engine, max_batch_tokens=128) as (batcher, recorder):
        counts = await asyncio.gather(*(submitter(number, batcher) for number in range(64)))
    computed = [lengths for _, lengths, _ in recorder.finished]
    assert sum(counts) == sum(map(len, computed))
    assert max(map(len, computed)) > 4  # there was company
    assert {lane.queued_tokens for lane in batcher.lanes.values()} == {0}


BATCH_SECONDS: dict[LaneName, float] = {"encode": 0.010, "attention": 0.070}


class Clockwork(FakeEngine):
    """Engine whose batches take 70 ms of the fake clock with maps, and 10 ms without."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(CONFIG)
        self.clock = FakeClock(monkeypatch)
        self.running = threading.Event()
        self.running.set()

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        self.running.wait()
        outputs = super().run(tasks)
        lane: LaneName = "attention" if isinstance(tasks[0], MapsTask) else "encode"
        self.clock.now += BATCH_SECONDS[lane]
        return outputs


def flood(batcher: Scheduler, lane: LaneName, batches: int) -> list[asyncio.Task[object]]:
    """Queue texts that make one batch each."""
    tasks: list[Task] = [
        layer_maps(8, seed) if lane == "attention" else text(8, seed, hidden_layers=(0,))
        for seed in range(batches)
    ]
    return [asyncio.create_task(batcher.submit(lane, [task])) for task in tasks]


async def answered(engine: Clockwork, batcher: Scheduler, *floods: tuple[LaneName, int]) -> None:
    """Queue all batches of some floods before the first is computed, and wait for all."""
    engine.running.clear()
    tasks = [task for lane, batches in floods for task in flood(batcher, lane, batches)]
    await asyncio.sleep(0)  # in which each task is queued
    engine.running.set()
    await asyncio.gather(*tasks)


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


@pytest.mark.parametrize("lane", ["encode", "attention"])
async def test_a_lane_alone_gets_everything(
    lane: LaneName, monkeypatch: pytest.MonkeyPatch
) -> None:
    with batching(Clockwork(monkeypatch), max_batch_tokens=8) as (batcher, recorder):
        started = batcher.engine.clock.now  # type: ignore[attr-defined]
        await asyncio.gather(*flood(batcher, lane, 20))
        taken = batcher.engine.clock.now - started  # type: ignore[attr-defined]
    assert [name for name, _, _ in recorder.finished] == [lane] * 20
    assert taken == pytest.approx(20 * BATCH_SECONDS[lane])


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
        if one_by_one:  # the queue is empty whenever the next text arrives
            for _ in range(200):
                await asyncio.gather(*flood(batcher, alone, 1))
        else:
            await asyncio.gather(*flood(batcher, alone, 200))
        then: LaneName = "encode" if first == "attention" else "attention"
        await answered(engine, batcher, (first, 100), (then, 100))
    assert share(recorder, seconds=1, since=200) == pytest.approx(0.75, abs=0.12)


async def test_a_rare_length_does_not_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Clockwork(monkeypatch)
    asked = {"hidden_layers": (0,)}
    with batching(engine, max_batch_tokens=64) as (batcher, recorder):
        stop = False

        async def keep_flooding(seed: int) -> None:
            while not stop:
                await batcher.submit("encode", [text(8, seed, **asked)])

        floods = [asyncio.create_task(keep_flooding(seed)) for seed in range(40)]
        await until(lambda: len(recorder.finished) > 5)
        before = len(recorder.finished)
        await batcher.submit("encode", [text(500, **asked)])
        stop = True
        await asyncio.gather(*floods)
    lengths = [lengths for _, lengths, _ in recorder.finished]
    # only earlier texts: 5 full batches, or up to 40 if the event loop lags
    assert lengths.index([500]) - before <= 40
