"""Refusals of the queue, and requests whose client has disconnected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from model.artifact.decomposition import DecompositionStep
from service.engines.contract import DecomposeTask, MapsTask, Output, Task
from service.engines.fake import FakeEngine
from service.errors import (
    EngineUnavailable,
    Overloaded,
    Unprocessable,
)
from service.scheduler.admission import NOTHING, Admission, BatchLimits, Demand
from service.scheduler.call import ANYBODY, Call, PendingWork
from service.scheduler.lanes import Lane, LaneName
from service.scheduler.pace import Pace
from service.scheduler.queue import Work
from service.scheduler.scheduler import Scheduler
from tests.service.harness import (
    CONFIG,
    GatedEngine,
    batching,
    text,
    until,
)
from tests.service.scheduler.clock import FakeClock

pytestmark = pytest.mark.anyio


def plugged(batcher: Scheduler) -> asyncio.Task[object]:
    """Keep the only worker of a `GatedEngine` busy."""
    return asyncio.create_task(batcher.submit("encode", [text(1)]))


async def test_a_request_that_never_fits_is_refused_for_good() -> None:
    with batching(FakeEngine(CONFIG), max_queue_tokens=200) as (batcher, recorder):
        with pytest.raises(Unprocessable, match="101 tokens; at most 100"):
            await batcher.submit("encode", [text(50), text(51)])
        assert len(await batcher.submit("encode", [text(50), text(50)])) == 2
    assert len(recorder.finished) == 2


async def test_a_full_queue_refuses_until_there_is_room() -> None:
    engine = GatedEngine()
    with batching(engine, max_queue_tokens=200) as (batcher, _):
        plug = plugged(batcher)
        await until(lambda: engine.batches)
        waiting = asyncio.create_task(batcher.submit("encode", [text(60)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens == 60)
        with pytest.raises(Overloaded, match=r"60 of 200 tokens.* half of the rest") as refused:
            await batcher.submit("encode", [text(71)])
        assert (refused.value.retry_after_seconds or 0) >= 1
        assert batcher.lanes["encode"].queued_tokens == 60  # nothing of the refused request is left

        fits = asyncio.create_task(batcher.submit("encode", [text(70)]))
        other_lane = asyncio.create_task(batcher.submit("attention", [text(100)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens == 130)
        engine.let_through()
        await asyncio.gather(plug, waiting, fits, other_lane)
        assert len(await batcher.submit("encode", [text(100)])) == 1


async def test_a_large_request_leaves_room_for_small_ones() -> None:
    engine = GatedEngine()
    with batching(engine, max_queue_tokens=1000, max_queue_texts=100) as (batcher, _):
        plug = plugged(batcher)
        await until(lambda: engine.batches)
        waiting = [asyncio.create_task(batcher.submit("encode", [text(10)] * 50))]
        await until(lambda: batcher.lanes["encode"].queued_tokens == 500)
        with pytest.raises(Overloaded, match="500 of 1000 tokens"):
            await batcher.submit("encode", [text(10)] * 50)
        waiting += [asyncio.create_task(batcher.submit("encode", [text(10)])) for _ in range(40)]
        await until(lambda: batcher.lanes["encode"].queued_texts == 90)
        engine.let_through()
        await asyncio.gather(plug, *waiting)


@pytest.mark.parametrize(("queued", "seconds"), [(50, 0.5), (1000, 10.0), (4100, 41.0)])
async def test_retry_after_is_once_or_twice_how_long_the_queue_takes(
    queued: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(monkeypatch)

    class HundredTokensASecond(GatedEngine):
        def run(self, tasks: Sequence[Task]) -> list[Output]:
            outputs = super().run(tasks)
            clock.now += sum(task.tokens for task in tasks) / 100
            return outputs

    engine = HundredTokensASecond()
    told = set()
    with batching(engine, max_queue_tokens=2 * queued, max_queue_texts=4) as (batcher, _):
        engine.let_through(3)
        for length in (10, 30, 50):
            await batcher.submit("encode", [text(length)])
        plug = plugged(batcher)
        await until(lambda: len(engine.batches) == 4)
        waiting = asyncio.create_task(batcher.submit("encode", [text(queued - 1), text(1)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens == queued)
        for _ in range(40):
            with pytest.raises(Overloaded) as refused:
                await batcher.submit("encode", [text(1), text(2)])
            told.add(refused.value.retry_after_seconds)
        assert seconds <= min(told) + 0.5
        assert max(told) <= 2.2 * seconds + 1.5  # the running batch, in whole seconds
        assert len(told) > 1 or seconds < 1  # not all come back at once
        engine.let_through()
        await asyncio.gather(plug, waiting)


async def test_a_dead_engine_is_refused_before_the_queue() -> None:
    class Dead(FakeEngine):
        alive = False

    with (
        batching(Dead(CONFIG)) as (batcher, _),
        pytest.raises(EngineUnavailable, match="fake engine is down") as refused,
    ):
        await batcher.submit("encode", [text(4)])
    assert refused.value.retry_after_seconds == 5


async def test_who_left_is_dropped_before_it_is_computed() -> None:
    engine = GatedEngine()
    with batching(engine, max_batch_tokens=64) as (batcher, recorder):
        plug = plugged(batcher)
        await until(lambda: engine.batches)
        stays = asyncio.create_task(batcher.submit("encode", [text(8), text(9)]))
        leaves = asyncio.create_task(batcher.submit("encode", [text(8), text(30), text(9)]))
        looks = asyncio.create_task(batcher.submit("attention", [text(7)]))
        await until(lambda: batcher.lanes["attention"].queued_tokens)
        assert batcher.lanes["encode"].queued_tokens == 17 + 47
        leaves.cancel()
        looks.cancel()
        await asyncio.gather(leaves, looks, return_exceptions=True)
        assert leaves.cancelled()
        assert batcher.lanes["encode"].queued_tokens == 17
        assert batcher.lanes["attention"].queued_tokens == 0
        assert recorder.drops == ["encode"] * 3 + ["attention"]
        engine.let_through()
        await asyncio.gather(plug, stays)
        assert engine.batches == [[1], [8, 9]]
        assert batcher.lanes["encode"].queued_tokens == 0


async def test_who_leaves_while_computed_hurts_no_neighbour() -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, recorder):
        plug = plugged(batcher)
        await until(lambda: engine.batches)
        stays = asyncio.create_task(batcher.submit("encode", [text(8, 1)]))
        leaves = asyncio.create_task(batcher.submit("encode", [text(8, 2)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens == 16)
        engine.let_through(1)
        await until(lambda: engine.batches == [[1], [8, 8]])
        leaves.cancel()
        engine.let_through()
        await asyncio.gather(plug, stays)
        assert recorder.drops == []  # it was computed nevertheless
        assert not recorder.failed


async def test_a_hung_engine_keeps_nothing_of_those_who_left() -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, recorder):
        plug = plugged(batcher)
        patient = asyncio.create_task(batcher.submit("encode", [text(8)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens == 8)
        for number in range(100):
            request = asyncio.create_task(
                batcher.submit("encode", [text(8)], Call(f"client {number}"))
            )
            await asyncio.sleep(0)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
        assert len(recorder.drops) == 100
        assert batcher.lanes["encode"].queued_texts == 1
        assert len(batcher.lanes["encode"].texts._turns) < 100
        engine.let_through()
        await asyncio.gather(plug, patient)


async def test_time_is_asked_for_what_an_answer_needs_and_no_more() -> None:
    engine = GatedEngine()
    with batching(engine, max_queue_tokens=200) as (batcher, _):
        lane = batcher.lanes["attention"]
        lane.text_pace = tenth_a_token()
        engine.let_through()
        for needed, admitted in ((170, True), (250, False)):
            promise = PendingWork(10**6, needed)
            caller = Call(finish_by=time.monotonic() + 20, pending=promise)
            if admitted:
                await batcher.submit("attention", [text(50)], caller)
                assert (promise.tokens, promise.needed) == (10**6 - 50, needed - 50)
                promise.end()
                assert not promise.tokens
                lane.text_pace = tenth_a_token()
            else:
                with pytest.raises(Overloaded, match="it would take about"):
                    await batcher.submit("attention", [text(50)], caller)


async def test_batches_measured_at_start_make_the_first_forecast() -> None:
    engine = FakeEngine(CONFIG, concurrency=2)
    engine.measured = [(16, 1.6), (64, 6.4)]
    with batching(engine, max_batch_tokens=64) as (batcher, _):
        assert batcher.seconds_alone("attention", 640) == pytest.approx(32)
        soon = Call(finish_by=time.monotonic() + 4)
        with pytest.raises(Overloaded, match=r"would take about 6\.\d s"):
            await batcher.submit("encode", [text(64)], soon)


async def test_queued_maps_are_forecast_by_the_pace_of_maps() -> None:
    engine = FakeEngine(CONFIG)
    engine.measured, engine.measured_maps = [(64, 6.4)], [(64, 0.64)]
    with batching(engine) as (batcher, _):
        lane = batcher.lanes["attention"]
        lane.map_tokens = 640
        assert lane.seconds(128, 64) == pytest.approx(6.4 + 12.8)
        lane.map_tokens = 0


async def test_the_pace_of_texts_knows_no_maps() -> None:
    with batching(FakeEngine(CONFIG)) as (batcher, _):
        states = np.zeros((30, 8), np.float32)
        await batcher.submit("attention", [text(8)])
        before = batcher.lanes["attention"].text_pace.predict(64, 64)
        await batcher.resume("attention", [MapsTask(states, states, 0, (0,))])
        lane = batcher.lanes["attention"]
        assert lane.text_pace.predict(64, 64) == before
        assert len(lane.map_pace._points) == 1


async def test_a_running_batch_is_forecast_by_batches_of_every_kind() -> None:
    """Measured texts of any size would otherwise stand for decompositions and maps."""
    lane = Lane("attention", 1.0)
    lane.expect([(1, 0.2), (512, 102.4)], [(512, 1.0)])
    assert lane.batch_seconds == pytest.approx(0.9 * 0.2 + 0.1 * 102.4)
    task = DecomposeTask(DecompositionStep(np.zeros((1, 1, 8), np.float32), 0), 256)
    work = Work([task], ANYBODY)
    lane.push(work)
    before = lane.batch_seconds
    lane.account(work.slots, 0.0)
    assert lane.batch_seconds == pytest.approx(0.9 * before)


def tenth_a_token() -> Pace:
    """Return 0.1 seconds for each token."""
    pace = Pace()
    for tokens in (1, 64):
        pace.account(tokens, tokens / 10)
    return pace


def waits(seconds: float) -> str:
    return rf"a wait of {seconds:.1f} s is predicted".replace(".", r"\.")


async def test_a_wait_that_would_be_too_long_is_refused_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(monkeypatch)
    engine = GatedEngine()
    with batching(engine, queue_seconds=3.0) as (batcher, recorder):
        plug = plugged(batcher)
        await until(lambda: engine.batches)
        lane = batcher.lanes["encode"]
        lane.text_pace = tenth_a_token()
        running = lane.batch_seconds = 0.64  # of the batch that has to end first
        waiting = asyncio.create_task(batcher.submit("encode", [text(15)]))
        await until(lambda: lane.queued_tokens == 15)
        soon = Call(finish_by=clock.now + 1)
        with pytest.raises(Overloaded, match=waits(1.5 + running)) as impatient:
            await batcher.submit("encode", [text(8)], soon)
        assert 2 <= (impatient.value.retry_after_seconds or 0) <= 5
        other = asyncio.create_task(batcher.submit("encode", [text(10)]))  # 3 s are allowed
        await until(lambda: lane.queued_tokens == 25)
        with pytest.raises(Overloaded, match=waits(2.5 + running)):
            await batcher.submit("encode", [text(8)])
        batcher.admit("encode", ANYBODY, NOTHING)  # checked once it is tokenised
        lane.congestion.standing = True
        with pytest.raises(Overloaded, match=waits(2.5 + running)):
            batcher.admit("encode", ANYBODY, NOTHING)
        assert recorder.refusals == [("encode", "wait")] * 3
        engine.let_through()
        await asyncio.gather(plug, waiting, other)


async def test_what_cannot_end_in_time_is_refused_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(monkeypatch)
    engine = GatedEngine()
    with batching(engine) as (batcher, recorder):
        lane = batcher.lanes["encode"]
        lane.text_pace = tenth_a_token()
        soon = Call(finish_by=clock.now + 10)
        with pytest.raises(Overloaded, match=r"would take about 15\.0 s, and 10\.0 s") as no:
            await batcher.submit("encode", [text(50)] * 3, soon)
        assert no.value.status == 429
        fits = asyncio.create_task(batcher.submit("encode", [text(30)] * 3, soon))
        await until(lambda: engine.batches)
        lane.margin.mean = 2.0  # ratio of the requests' time to the prediction
        with pytest.raises(Overloaded, match=r"would take about"):
            await batcher.submit("encode", [text(55)], soon)
        assert recorder.refusals == [("encode", "deadline")] * 2
        engine.let_through()
        await fits


async def test_what_is_ahead_of_a_request_counts_for_its_deadline_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(monkeypatch)
    engine = GatedEngine()
    with batching(engine, max_queue_tokens=200) as (batcher, recorder):
        lane = batcher.lanes["attention"]
        lane.text_pace = tenth_a_token()
        soon = Call(finish_by=clock.now + 20, pending=PendingWork(250))
        with pytest.raises(Overloaded, match=r"would take about 25\.0 s, and 20\.0 s"):
            await batcher.submit("attention", [text(50)], soon)
        assert recorder.refusals == [("attention", "deadline")]
        engine.let_through()
        await batcher.submit("attention", [text(50)], replace(soon, pending=PendingWork(170)))
        assert lane.queued_tokens == 0
        assert lane.margin.mean < 1.1, "the prediction was of what was submitted"


async def test_what_others_were_promised_comes_before_the_end_of_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise all concurrent requests are admitted, and none ends in time."""
    now = FakeClock(monkeypatch).now
    with batching(FakeEngine(CONFIG)) as (batcher, _):
        lane = batcher.lanes["attention"]
        first = Call("a", now + 20, PendingWork(150))
        await batcher.submit("attention", [text(10)], first)
        lane.text_pace = tenth_a_token()
        second = Call("b", now + 10, PendingWork(60))
        with pytest.raises(Overloaded, match=r"would take about 1\d\.\d s, and"):
            await batcher.submit("attention", [text(10)], second)
        await batcher.resume("attention", [text(60)] * 2, call=first)
        lane.text_pace = tenth_a_token()
        await batcher.submit("attention", [text(10)], replace(second, pending=PendingWork(60)))


async def test_a_prediction_that_was_wrong_refuses_only_for_a_while() -> None:
    """Each refusal lowers the trust in the prediction: nothing else could correct it."""
    with batching(FakeEngine(CONFIG), max_batch_tokens=64) as (batcher, recorder):
        lane = batcher.lanes["encode"]
        lane.text_pace.account(64, 90.0)  # the machine slept
        refused = 0
        while True:
            try:
                await batcher.submit("encode", [text(64)], Call(finish_by=time.monotonic() + 30))
                break
            except Overloaded:
                refused += 1
        assert 5 < refused < 50
        assert recorder.refusals == [("encode", "deadline")] * refused
        assert lane.text_pace.predict(64, 64) < 20  # and what it took has mended it


async def test_a_queue_that_stands_is_cut_to_twice_its_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(monkeypatch)
    engine = GatedEngine()
    limits = {"queue_seconds": 60.0, "queue_target_seconds": 2.0}
    with batching(engine, **limits) as (batcher, recorder):
        plug = plugged(batcher)
        await until(lambda: engine.batches)
        lane = batcher.lanes["encode"]
        lane.text_pace = tenth_a_token()
        burst = [asyncio.create_task(batcher.submit("encode", [text(10)])) for _ in range(30)]
        await until(lambda: lane.queued_texts == 30)  # up to 30 s are allowed: a burst
        clock.now += 0.11
        tardy = asyncio.create_task(batcher.submit("encode", [text(10)]))
        await until(lambda: lane.queued_texts == 31)
        clock.now += 0.11  # all arrivals of a tenth of a second would wait for more than 2 s
        with pytest.raises(Overloaded, match=r"predicted, and 4\.0 s are allowed"):
            await batcher.submit("encode", [text(10)])
        assert recorder.refusals == [("encode", "wait")]
        engine.let_through()
        await asyncio.gather(plug, tardy, *burst)
        assert len(await batcher.submit("encode", [text(10)])) == 1
        assert not lane.congestion.standing


async def test_the_queue_is_bounded_in_texts_too() -> None:
    engine = GatedEngine()
    with batching(engine, max_queue_texts=6) as (batcher, recorder):
        with pytest.raises(Unprocessable, match="4 texts; at most 3"):
            await batcher.submit("encode", [text(1)] * 4)
        plug = plugged(batcher)
        await until(lambda: engine.batches)
        waiting = asyncio.create_task(batcher.submit("encode", [text(1), text(2)]))
        await until(lambda: batcher.lanes["encode"].queued_texts == 2)
        with pytest.raises(Overloaded, match="2 of 6 texts"):
            await batcher.submit("encode", [text(1)] * 3)
        assert recorder.refusals == [("encode", "texts")]
        engine.let_through()
        await asyncio.gather(plug, waiting)
        assert batcher.lanes["encode"].queued_texts == 0


class Queued(Lane):
    """Lane in which a number of tokens wait."""

    def __init__(self, name: LaneName, share: float, tokens: int) -> None:
        super().__init__(name, share, text_pace=tenth_a_token(), map_pace=tenth_a_token())
        self.map_tokens = tokens


@pytest.mark.parametrize(
    ("own", "other", "threads", "seconds"),
    [
        (100, 0, 1, 10.0),
        (100, 0, 4, 2.5),
        (0, 500, 1, 0.0),
        (300, 1000, 1, 40.0),  # three quarters of the engine are its own
        (300, 50, 1, 35.0),  # the other lane has no more than that
    ],
)
def test_the_wait_is_that_of_the_lanes_work_at_its_share(
    own: int, other: int, threads: int, seconds: float
) -> None:
    lane, beside = Queued("encode", 3.0, own), Queued("attention", 1.0, other)
    admission = Admission([lane, beside], BatchLimits(64, 10**6), threads)
    found = admission.forecast(lane, ANYBODY, Demand(1, 30), idle=True)
    assert found.wait == pytest.approx(seconds)
    assert found.total == pytest.approx(seconds + 3)


def test_the_batch_that_runs_has_to_end_first() -> None:
    lane = Queued("encode", 3.0, 0)
    lane.batch_seconds = 3.0
    admission = Admission([lane], BatchLimits(64, 10**6), 2)
    found = admission.forecast(lane, ANYBODY, Demand(1, 30), idle=False)
    assert found.wait == 1.5
