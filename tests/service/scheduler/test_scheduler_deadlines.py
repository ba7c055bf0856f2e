"""Texts that may not wait, or whose answer comes too late."""

from __future__ import annotations

import asyncio
import threading
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

pytestmark = pytest.mark.anyio
SOON = 0.25
"""A deadline that nothing here meets by accident, and that a worker's first batch does."""


async def test_what_waits_too_long_is_given_up_and_never_computed() -> None:
    engine = GatedEngine()
    with batching(engine, queue_seconds=SOON) as (batcher, recorder):
        plug = asyncio.create_task(batcher.submit("encode", [text(1)]))
        await until(lambda: engine.batches)
        with pytest.raises(DeadlinePassed) as refused:
            await batcher.submit("encode", [text(8), text(9)])
        assert (refused.value.retry_after_seconds or 0) >= 1
        assert refused.value.status == 429
        assert batcher.lanes["encode"].queued_tokens == 0
        assert recorder.refusals == [("encode", "deadline")]
        engine.let_through()
        await plug
        await until(lambda: batcher._dispatcher.workers.idle)
        assert len(await batcher.submit("encode", [text(10)])) == 1
    assert engine.batches == [[1], [10]]


async def test_a_worker_skips_what_is_overdue_even_if_the_loop_is_late() -> None:
    engine = GatedEngine()
    with batching(engine, queue_seconds=SOON) as (batcher, _):
        plug = asyncio.create_task(batcher.submit("encode", [text(1)]))
        await until(lambda: engine.batches)
        late = asyncio.create_task(batcher.submit("encode", [text(8)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens)
        threading.Timer(2 * SOON, engine.let_through).start()
        time.sleep(4 * SOON)  # the event loop stands still, the worker does not
        with pytest.raises(DeadlinePassed):
            await late
        await plug
    assert engine.batches == [[1]]


async def test_a_deadline_during_the_computation_is_a_timeout() -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, recorder):
        with pytest.raises(EngineTimeout) as failed:
            await batcher.submit("encode", [text(8)], Caller(finish_by=time.monotonic() + SOON))
        assert failed.value.status == 504
        assert recorder.refusals == []
        engine.let_through()
        (done,) = await batcher.submit("encode", [text(8)])
        assert_same(done.output, engine.expected(text(8)))


async def test_a_request_that_has_begun_may_wait_for_its_rest() -> None:
    engine = GatedEngine()
    with batching(engine, max_batch_tokens=8, queue_seconds=SOON) as (batcher, _):
        running = asyncio.create_task(batcher.submit("encode", [text(8, 1), text(8, 2)]))
        await until(lambda: engine.batches)
        await asyncio.sleep(3 * SOON)
        engine.let_through()
        assert len(await running) == 2


async def test_a_request_that_continues_has_its_deadline_too() -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, _), pytest.raises(EngineTimeout):
        await batcher.resume(
            "attention", [layer_maps(8)], caller=Caller(finish_by=time.monotonic() + SOON)
        )


async def test_a_deadline_that_has_passed_is_refused_at_once() -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, recorder):
        with pytest.raises(DeadlinePassed):
            await batcher.submit("encode", [text(8)], Caller(finish_by=time.monotonic() - 1))
        assert recorder.refusals == [("encode", "deadline")]
    assert engine.batches == []
