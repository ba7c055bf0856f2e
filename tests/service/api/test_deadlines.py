"""Requests that may not wait, or not for as long as they would have to."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.errors import DeadlinePassed, EngineTimeout, Overloaded, Unprocessable
from service.scheduler.admission import BatchLimits, predicted_wait
from service.scheduler.lanes import Lane
from service.scheduler.pace import Pace
from tests.service.harness import (
    GatedEngine,
    assert_problem,
    assert_same,
    batching,
    layer_maps,
    serving,
    text,
    until,
)

pytestmark = pytest.mark.anyio


def tenth_a_token() -> Pace:
    """A tenth of a second a token, and nothing a batch."""
    return Pace(tokens=0.01, seconds=0.001, variance=1.0, covariance=0.1)


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
            await batcher.submit("encode", [text(8)], time.monotonic() + SOON)
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
        await batcher.resume("attention", [layer_maps(8)], finish_by=time.monotonic() + SOON)


async def test_a_deadline_that_has_passed_is_refused_at_once() -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, recorder):
        with pytest.raises(DeadlinePassed):
            await batcher.submit("encode", [text(8)], time.monotonic() - 1)
        assert recorder.refusals == [("encode", "deadline")]
    assert engine.batches == []


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


@pytest.mark.parametrize("asked", ["", "-1", "1.5", "soon", "٣", "1" * 10])
async def test_a_timeout_that_is_no_number_is_refused(artifact: Artifact, asked: str) -> None:
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        headers = [(b"x-request-timeout-ms", asked.encode())]
        response = await client.post("/encode", json={"inputs": "a"}, headers=headers)
        assert_problem(response, 422, says="whole number of milliseconds")


@pytest.mark.parametrize("route", ["/encode", "/attention"])
@pytest.mark.parametrize(
    ("headers", "settings"),
    [({"x-request-timeout-ms": "1000"}, {}), ({}, {"request_timeout_seconds": 1.0})],
    ids=["header", "setting"],
)
async def test_a_hanging_engine_is_a_504_at_the_deadline(
    artifact: Artifact, route: str, headers: dict[str, str], settings: dict[str, float]
) -> None:
    engine = GatedEngine()
    async with serving(artifact, engine, **settings) as client:
        response = await client.post(route, json={"inputs": "a"}, headers=headers)
        problem = assert_problem(response, 504, error_type="Backend")
        assert problem["retryable"]
        assert (await client.get("/health/live")).status_code == 200
        engine.let_through()


async def test_no_time_at_all_is_a_429_with_retry_after(artifact: Artifact) -> None:
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        headers = {"x-request-timeout-ms": "0"}
        response = await client.post("/encode", json={"inputs": "a"}, headers=headers)
        assert_problem(response, 429, error_type="Overloaded")
        metrics = (await client.get("/metrics")).text
        assert 'headscope_refused_requests_total{lane="encode",reason="deadline"} 1.0' in metrics
