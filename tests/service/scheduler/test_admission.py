"""What the queue refuses, and what becomes of requests whose client left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from service.engines.contract import Output, Task
from service.engines.fake import FakeEngine
from service.errors import (
    EngineUnavailable,
    Overloaded,
    Unprocessable,
)
from service.scheduler.admission import BatchLimits, predicted_wait
from service.scheduler.lanes import Lane
from service.scheduler.pace import Pace
from service.scheduler.scheduler import Scheduler
from tests.service.harness import (
    CONFIG,
    GatedEngine,
    batching,
    text,
    until,
)

pytestmark = pytest.mark.anyio


def plugged(batcher: Scheduler) -> asyncio.Task[object]:
    """Keeps the one worker of a `GatedEngine` busy."""
    return asyncio.create_task(batcher.submit("encode", [text(1)]))


async def test_a_request_that_never_fits_is_refused_for_good() -> None:
    with batching(FakeEngine(CONFIG), max_queue_tokens=100) as (batcher, recorder):
        with pytest.raises(Unprocessable, match="101 tokens; at most 100"):
            await batcher.submit("encode", [text(50), text(51)])
        assert len(await batcher.submit("encode", [text(50), text(50)])) == 2
    assert len(recorder.finished) == 2


async def test_a_full_queue_refuses_until_there_is_room() -> None:
    engine = GatedEngine()
    with batching(engine, max_queue_tokens=100) as (batcher, _):
        plug = plugged(batcher)
        await until(lambda: engine.batches)
        waiting = asyncio.create_task(batcher.submit("encode", [text(60)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens == 60)
        with pytest.raises(Overloaded, match="60 of 100 tokens") as refused:
            await batcher.submit("encode", [text(41)])
        assert (refused.value.retry_after_seconds or 0) >= 1
        assert batcher.lanes["encode"].queued_tokens == 60  # nothing of the refused one stayed

        fits = asyncio.create_task(batcher.submit("encode", [text(40)]))
        other_lane = asyncio.create_task(batcher.submit("attention", [text(100)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens == 100)
        engine.let_through()
        await asyncio.gather(plug, waiting, fits, other_lane)
        assert len(await batcher.submit("encode", [text(100)])) == 1


@pytest.mark.parametrize(("queued", "seconds"), [(50, 1), (1000, 11), (4100, 42)])
async def test_retry_after_is_how_long_the_queue_takes(
    queued: int, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(monkeypatch)

    class HundredTokensASecond(GatedEngine):
        def run(self, tasks: Sequence[Task]) -> list[Output]:
            outputs = super().run(tasks)
            clock.now += sum(task.tokens for task in tasks) / 100
            return outputs

    engine = HundredTokensASecond()
    with batching(engine, max_queue_tokens=queued) as (batcher, _):
        engine.let_through(2)
        await batcher.submit("encode", [text(30)])
        await batcher.submit("encode", [text(40)])
        plug = plugged(batcher)
        await until(lambda: len(engine.batches) == 3)
        waiting = asyncio.create_task(batcher.submit("encode", [text(queued)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens == queued)
        with pytest.raises(Overloaded) as refused:
            await batcher.submit("encode", [text(1)])
        assert refused.value.retry_after_seconds == seconds
        engine.let_through()
        await asyncio.gather(plug, waiting)


class FakeClock:
    """`time.monotonic` of the scheduler, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (
            "service.scheduler.scheduler",
            "service.scheduler.dispatch",
            "service.scheduler.lanes",
        ):
            monkeypatch.setattr(f"{module}.time", self)

    def monotonic(self) -> float:
        return self.now


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
        assert recorder.drops == []  # it was computed after all
        assert not recorder.failed


async def test_a_hung_engine_keeps_nothing_of_those_who_left() -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, recorder):
        plug = plugged(batcher)
        patient = asyncio.create_task(batcher.submit("encode", [text(8)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens == 8)
        for _ in range(100):
            request = asyncio.create_task(batcher.submit("encode", [text(8)]))
            await asyncio.sleep(0)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
        assert len(recorder.drops) == 100
        assert sum(map(len, batcher.lanes["encode"].buckets.values())) == 1
        engine.let_through()
        await asyncio.gather(plug, patient)


def tenth_a_token() -> Pace:
    """A tenth of a second a token, and nothing a batch."""
    return Pace(tokens=0.01, seconds=0.001, variance=1.0, covariance=0.1)


async def test_a_wait_that_would_be_too_long_is_refused_before_it_begins() -> None:
    engine = GatedEngine()
    with batching(engine, queue_seconds=2.0) as (batcher, recorder):
        plug = asyncio.create_task(batcher.submit("encode", [text(1)]))
        await until(lambda: engine.batches)
        lane = batcher.lanes["encode"]
        lane.pace = tenth_a_token()
        waiting = asyncio.create_task(batcher.submit("encode", [text(15)]))
        await until(lambda: lane.queued_tokens == 15)
        with pytest.raises(Overloaded, match=r"a wait of 1\.5 s is predicted") as impatient:
            await batcher.submit("encode", [text(8)], time.monotonic() + 1)
        assert impatient.value.retry_after_seconds == 2
        other = asyncio.create_task(batcher.submit("encode", [text(10)]))  # 1.5 s are allowed
        await until(lambda: lane.queued_tokens == 25)
        with pytest.raises(Overloaded, match=r"a wait of 2\.5 s"):
            await batcher.submit("encode", [text(8)])
        assert recorder.refusals == [("encode", "wait")] * 2
        engine.let_through()
        await asyncio.gather(plug, waiting, other)


async def test_the_queue_is_bounded_in_texts_too() -> None:
    engine = GatedEngine()
    with batching(engine, max_queue_texts=3) as (batcher, recorder):
        with pytest.raises(Unprocessable, match="4 texts; at most 3"):
            await batcher.submit("encode", [text(1)] * 4)
        plug = asyncio.create_task(batcher.submit("encode", [text(1)]))
        await until(lambda: engine.batches)
        waiting = asyncio.create_task(batcher.submit("encode", [text(1), text(2)]))
        await until(lambda: batcher.lanes["encode"].queued_texts == 2)
        with pytest.raises(Overloaded, match="2 of 3 texts"):
            await batcher.submit("encode", [text(1), text(1)])
        assert recorder.refusals == [("encode", "texts")]
        engine.let_through()
        await asyncio.gather(plug, waiting)
        assert batcher.lanes["encode"].queued_texts == 0


@pytest.mark.parametrize(
    ("own", "other", "concurrency", "seconds"),
    [
        (100, 0, 1, 10.0),
        (100, 0, 4, 2.5),
        (0, 500, 1, 0.0),
        (300, 1000, 1, 40.0),  # three quarters of the engine are its own
        (300, 50, 1, 35.0),  # the other lane has no more than that
    ],
)
def test_the_wait_is_that_of_the_lanes_work_at_its_share(
    own: int, other: int, concurrency: int, seconds: float
) -> None:
    lane = Lane("encode", 3.0, queued_tokens=own, pace=tenth_a_token())
    beside = Lane("attention", 1.0, queued_tokens=other, pace=tenth_a_token())
    found = predicted_wait(lane, [lane, beside], BatchLimits(64, 10**6), concurrency)
    assert found == pytest.approx(seconds, abs=0.01)


def test_the_batch_that_runs_has_to_end_first() -> None:
    lane = Lane("encode", 3.0, queued_tokens=1, pace=Pace(tokens=64, seconds=8.0))
    assert predicted_wait(lane, [lane], BatchLimits(64, 10**6), 1) == 16.0
    lane.queued_tokens = 0
    assert predicted_wait(lane, [lane], BatchLimits(64, 10**6), 1) == 0.0
