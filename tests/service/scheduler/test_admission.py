"""What the queue refuses, and what becomes of requests whose client left."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from service.engines.contract import Output, Task
from service.engines.fake import FakeEngine
from service.errors import EngineUnavailable, Overloaded, Unprocessable
from service.scheduler.scheduler import Scheduler
from tests.service.harness import CONFIG, GatedEngine, batching, text, until

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
