"""Deadlines of requests that wait, or are computed, and batches that hang."""

from __future__ import annotations

import asyncio
import time

import pytest

from service.errors import DeadlinePassed, EngineTimeout, EngineUnavailable
from service.scheduler.call import Call
from tests.service.harness import GatedEngine, batching, until
from tests.service.scheduler.requests import FakeClock, ask, busy, queued, resume

pytestmark = pytest.mark.anyio

SOON = 0.05
"""Seconds until a timer checks the clock, which only the test moves."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return FakeClock(monkeypatch)


async def test_what_waits_too_long_is_given_up_and_never_computed(clock: FakeClock) -> None:
    async with busy(queue_seconds=SOON) as (batcher, engine, recorder):
        late = ask(batcher, "encode", 8, 9)
        await queued(batcher, 17)
        clock.now += SOON
        with pytest.raises(DeadlinePassed) as refused:
            await late
        assert (refused.value.retry_after_seconds or 0) >= 1
        assert refused.value.status == 429
        assert batcher.lanes["encode"].queued_tokens == 0
        assert recorder.refusals == [("encode", "deadline")]
        engine.let_through()
        await until(lambda: batcher._idle[False])
        assert len(await ask(batcher, "encode", 10)) == 1
    assert engine.batches == [[1], [10]]


async def test_each_request_has_its_own_deadline(clock: FakeClock) -> None:
    async with busy() as (batcher, _, _):
        due = [clock.now + seconds * SOON for seconds in (3, 1, 2)]
        late = [ask(batcher, "encode", 8, call=Call(finish_by=by)) for by in due]
        await queued(batcher, 24)
        for done, place in enumerate((1, 2, 0), 1):
            clock.now = due[place]
            with pytest.raises(DeadlinePassed):
                await asyncio.wait_for(late[place], 20)
            assert sum(task.done() for task in late) == done


async def test_a_worker_skips_what_is_overdue_even_if_the_loop_is_late(clock: FakeClock) -> None:
    async with busy(queue_seconds=SOON) as (batcher, engine, _):
        late = ask(batcher, "encode", 8)
        await queued(batcher, 8)
        clock.now += SOON
        engine.let_through()
        while not batcher._idle[False]:
            time.sleep(0.001)  # the event loop stands still, the worker does not
        with pytest.raises(DeadlinePassed):
            await late
    assert engine.batches == [[1]]


@pytest.mark.parametrize("resumed", [False, True])
async def test_a_deadline_during_the_computation_is_a_timeout(
    resumed: bool, clock: FakeClock
) -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, recorder):
        soon = Call(finish_by=clock.now + SOON)
        running = resume(batcher, 8, call=soon) if resumed else ask(batcher, "encode", 8, call=soon)
        await until(lambda: engine.batches)
        clock.now += SOON
        with pytest.raises(EngineTimeout) as failed:
            await running
        assert failed.value.status == 504
        assert recorder.refusals == []
        engine.let_through()
        assert len(await ask(batcher, "encode", 8)) == 1


async def test_a_request_that_has_begun_may_wait_for_its_rest(clock: FakeClock) -> None:
    engine = GatedEngine()
    with batching(engine, max_batch_tokens=8, queue_seconds=SOON) as (batcher, _):
        running = ask(batcher, "encode", 8, 8)
        await until(lambda: engine.batches)
        clock.now += 3 * SOON
        await asyncio.sleep(3 * SOON)
        engine.let_through()
        assert len(await running) == 2


async def test_a_deadline_that_has_passed_is_refused_at_once(clock: FakeClock) -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, recorder):
        with pytest.raises(DeadlinePassed):
            await ask(batcher, "encode", 8, call=Call(finish_by=clock.now - 1))
        assert recorder.refusals == [("encode", "deadline")]
    assert engine.batches == []


async def test_a_batch_that_hangs_fails_its_requests_alone(clock: FakeClock) -> None:
    engine = GatedEngine()
    with batching(engine, batch_seconds=10.0) as (batcher, _):
        hangs = ask(batcher, "encode", 8)
        waits = ask(batcher, "encode", 9)
        await until(lambda: engine.batches)
        clock.now += 9.0
        assert not batcher.failure
        clock.now += 2.0
        assert batcher.failure == "the fake engine hangs: a batch takes more than 10 s"
        began = time.monotonic()
        assert not await asyncio.to_thread(batcher.close)
        assert time.monotonic() - began < 1, "closing does not wait for a batch that hangs"
        with pytest.raises(EngineTimeout, match="a batch takes more than 10 s"):
            await hangs
        with pytest.raises(EngineUnavailable, match="stopping"):
            await waits
