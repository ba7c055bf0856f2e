"""Texts that may not wait, or whose result comes too late."""

from __future__ import annotations

import asyncio
import time

import pytest

from service.errors import DeadlinePassed, EngineTimeout
from service.scheduler.submission import Caller
from tests.service.harness import (
    GatedEngine,
    assert_same,
    batching,
    layer_maps,
    text,
    until,
)
from tests.service.scheduler.clock import FakeClock

pytestmark = pytest.mark.anyio
SOON = 0.05
"""Seconds until a timer checks the clock, which only the test moves."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return FakeClock(monkeypatch)


async def test_what_waits_too_long_is_given_up_and_never_computed(clock: FakeClock) -> None:
    engine = GatedEngine()
    with batching(engine, queue_seconds=SOON) as (batcher, recorder):
        plug = asyncio.create_task(batcher.submit("encode", [text(1)]))
        await until(lambda: engine.batches)
        late = asyncio.create_task(batcher.submit("encode", [text(8), text(9)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens)
        clock.now += SOON
        with pytest.raises(DeadlinePassed) as refused:
            await late
        assert (refused.value.retry_after_seconds or 0) >= 1
        assert refused.value.status == 429
        assert batcher.lanes["encode"].queued_tokens == 0
        assert recorder.refusals == [("encode", "deadline")]
        engine.let_through()
        await plug
        await until(lambda: batcher._dispatcher.workers.idle)
        assert len(await batcher.submit("encode", [text(10)])) == 1
    assert engine.batches == [[1], [10]]


async def test_a_worker_skips_what_is_overdue_even_if_the_loop_is_late(clock: FakeClock) -> None:
    engine = GatedEngine()
    with batching(engine, queue_seconds=SOON) as (batcher, _):
        plug = asyncio.create_task(batcher.submit("encode", [text(1)]))
        await until(lambda: engine.batches)
        late = asyncio.create_task(batcher.submit("encode", [text(8)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens)
        clock.now += SOON
        engine.let_through()
        while not batcher._dispatcher.workers.idle:
            time.sleep(0.001)  # the event loop stands still, the worker does not
        with pytest.raises(DeadlinePassed):
            await late
        await plug
    assert engine.batches == [[1]]


async def test_a_deadline_during_the_computation_is_a_timeout(clock: FakeClock) -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, recorder):
        running = asyncio.create_task(
            batcher.submit("encode", [text(8)], Caller(finish_by=clock.now + SOON))
        )
        await until(lambda: engine.batches)
        clock.now += SOON
        with pytest.raises(EngineTimeout) as failed:
            await running
        assert failed.value.status == 504
        assert recorder.refusals == []
        engine.let_through()
        (done,) = await batcher.submit("encode", [text(8)])
        assert_same(done.value, engine.expected(text(8)))


async def test_a_request_that_has_begun_may_wait_for_its_rest(clock: FakeClock) -> None:
    engine = GatedEngine()
    with batching(engine, max_batch_tokens=8, queue_seconds=SOON) as (batcher, _):
        running = asyncio.create_task(batcher.submit("encode", [text(8, 1), text(8, 2)]))
        await until(lambda: engine.batches)
        clock.now += 3 * SOON
        await asyncio.sleep(3 * SOON)
        engine.let_through()
        assert len(await running) == 2


async def test_a_request_that_continues_has_its_deadline_too(clock: FakeClock) -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, _):
        resumed = batcher.resume(
            "attention", [layer_maps(8)], caller=Caller(finish_by=clock.now + SOON)
        )
        running = asyncio.create_task(resumed)
        await until(lambda: engine.batches)
        clock.now += SOON
        with pytest.raises(EngineTimeout):
            await running


async def test_a_deadline_that_has_passed_is_refused_at_once(clock: FakeClock) -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, recorder):
        with pytest.raises(DeadlinePassed):
            await batcher.submit("encode", [text(8)], Caller(finish_by=clock.now - 1))
        assert recorder.refusals == [("encode", "deadline")]
    assert engine.batches == []
