"""Refusals of the queue, their forecasts, and requests whose client has disconnected."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from model.artifact.decomposition import DecompositionStep
from service.engines.contract import DecomposeTask, MapsTask, Task
from service.engines.fake import FakeEngine
from service.errors import Overloaded, Unprocessable
from service.scheduler.call import ANYBODY, NOTHING, Call, Demand
from service.scheduler.lanes import BatchLimits, Lane
from service.scheduler.queue import Work
from tests.service.harness import CONFIG, GatedEngine, Recorder, batching, text, until
from tests.service.scheduler.requests import FakeClock, ask, busy, queued, resume, tenth_a_token

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("limits", "lengths", "says"),
    [
        ({"max_queue_tokens": 200}, (50, 51), "101 tokens; at most 100"),
        ({"max_queue_texts": 6}, (1,) * 4, "4 texts; at most 3"),
    ],
)
async def test_a_request_that_never_fits_is_refused_for_good(
    limits: dict[str, int], lengths: tuple[int, ...], says: str
) -> None:
    with batching(FakeEngine(CONFIG), **limits) as (batcher, _):
        with pytest.raises(Unprocessable, match=says):
            await ask(batcher, "encode", *lengths)
        assert len(await ask(batcher, "encode", *(50, 50)[: len(lengths)])) == 2


async def test_a_request_takes_at_most_half_of_the_room_that_is_left() -> None:
    async with busy(max_queue_tokens=200, max_queue_texts=8) as (batcher, engine, recorder):
        waiting = [ask(batcher, "encode", 60)]
        await queued(batcher, 60)
        with pytest.raises(Overloaded, match=r"60 of 200 tokens.* half of the rest") as refused:
            await ask(batcher, "encode", 71)
        assert (refused.value.retry_after_seconds or 0) >= 1
        assert batcher.lanes["encode"].queued_tokens == 60  # nothing of the refused request is left
        with pytest.raises(Overloaded, match="1 of 8 texts"):
            await ask(batcher, "encode", *[1] * 4)
        waiting += [ask(batcher, "encode", 70), ask(batcher, "attention", 100)]
        waiting += [ask(batcher, "encode", 1) for _ in range(3)]  # small ones still fit
        await queued(batcher, 133)
        assert recorder.refusals == [("encode", "tokens"), ("encode", "texts")]
        engine.let_through()
        await asyncio.gather(*waiting)
        assert len(await ask(batcher, "encode", 100)) == 1


@pytest.mark.parametrize(("waiting", "seconds"), [(5, 0.5), (100, 10.0), (410, 41.0)])
async def test_retry_after_is_once_or_twice_how_long_the_queue_takes(
    waiting: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeClock(monkeypatch)
    told = set()
    limits = {"max_queue_tokens": 2 * waiting, "max_queue_texts": 4}
    async with busy(**limits) as (batcher, engine, _):
        batcher.lanes["encode"].text_pace = tenth_a_token()
        request = ask(batcher, "encode", waiting - 1, 1)
        await queued(batcher, waiting)
        for _ in range(40):
            with pytest.raises(Overloaded) as refused:
                await ask(batcher, "encode", 1, 2)
            told.add(refused.value.retry_after_seconds)
        assert seconds <= min(told) + 0.5
        assert max(told) <= 2 * seconds + 0.5  # in whole seconds
        assert len(told) > 1 or seconds < 1  # not all come back at once
        engine.let_through()
        await request


async def test_who_left_is_dropped_before_it_is_computed() -> None:
    async with busy(max_batch_tokens=64) as (batcher, engine, recorder):
        stays, leaves = ask(batcher, "encode", 8, 9), ask(batcher, "encode", 8, 30, 9)
        looks, maps = ask(batcher, "attention", 7), resume(batcher, 8, 9)
        await queued(batcher, 7 + 17, "attention")
        await queued(batcher, 17 + 47)
        for request in (leaves, looks, maps):
            request.cancel()
        await asyncio.wait([leaves, looks, maps])
        await queued(batcher, 17)
        assert batcher.lanes["attention"].queued_tokens == 0
        assert recorder.drops == ["encode"] * 3 + ["attention"]  # texts of maps were computed
        engine.let_through()
        await stays
        assert engine.batches == [[1], [8, 9]]
        assert batcher.lanes["encode"].queued_tokens == 0


def waits(seconds: float) -> str:
    return rf"a wait of {seconds:.1f} s is predicted".replace(".", r"\.")


async def test_a_wait_that_would_be_too_long_is_refused_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(monkeypatch)
    async with busy(queue_seconds=3.0) as (batcher, engine, recorder):
        lane = batcher.lanes["encode"]
        lane.text_pace = tenth_a_token()
        running = lane.batch_seconds = 0.64  # of the batch that has to end first
        waiting = [ask(batcher, "encode", 15)]
        await queued(batcher, 15)
        with pytest.raises(Overloaded, match=waits(1.5 + running)) as impatient:
            await ask(batcher, "encode", 8, call=Call(finish_by=clock.now + 1))
        assert 2 <= (impatient.value.retry_after_seconds or 0) <= 5
        waiting.append(ask(batcher, "encode", 10))  # 3 s are allowed
        await queued(batcher, 25)
        with pytest.raises(Overloaded, match=waits(2.5 + running)):
            await ask(batcher, "encode", 8)
        batcher.admit("encode", ANYBODY, NOTHING)  # checked once it is tokenised
        lane.congestion.standing = True
        with pytest.raises(Overloaded, match=waits(2.5 + running)):
            batcher.admit("encode", ANYBODY, NOTHING)
        assert recorder.refusals == [("encode", "wait")] * 3
        engine.let_through()
        await asyncio.gather(*waiting)


async def test_what_cannot_end_in_time_is_refused_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(monkeypatch)
    engine = GatedEngine()
    with batching(engine) as (batcher, recorder):
        lane, soon = batcher.lanes["encode"], Call(finish_by=clock.now + 10)
        lane.text_pace = tenth_a_token()
        with pytest.raises(Overloaded, match=r"would take about 15\.0 s, and 10\.0 s") as no:
            await ask(batcher, "encode", *[50] * 3, call=soon)
        assert no.value.status == 429
        fits = ask(batcher, "encode", *[30] * 3, call=soon)
        await until(lambda: engine.batches)
        lane.margin.factor = 2.0  # ratio of the requests' time to the prediction
        with pytest.raises(Overloaded, match=r"would take about"):
            await ask(batcher, "encode", 55, call=soon)
        assert recorder.refusals == [("encode", "deadline")] * 2
        engine.let_through()
        await fits


async def test_a_prediction_that_was_wrong_refuses_only_for_a_while() -> None:
    """Each refusal lowers the trust in the prediction: nothing else could correct it."""
    with batching(FakeEngine(CONFIG), max_batch_tokens=64) as (batcher, recorder):
        lane, refused = batcher.lanes["encode"], 0
        lane.text_pace.account(64, 90.0)  # the machine slept
        while True:
            try:
                await ask(batcher, "encode", 64, call=Call(finish_by=time.monotonic() + 30))
                break
            except Overloaded:
                refused += 1
        assert 5 < refused < 50
        assert recorder.refusals == [("encode", "deadline")] * refused
        assert lane.text_pace.predict(64) < 20  # and what it took has mended it


async def test_uncertainty_does_not_delay_a_retry() -> None:
    """The margin makes a promise safe; the work ahead is still computed at the mean pace."""
    with batching(FakeEngine(CONFIG), max_batch_tokens=64) as (batcher, _):
        lane = batcher.lanes["encode"]
        lane.text_pace, lane.margin.factor = tenth_a_token(), 3.0
        with pytest.raises(Overloaded, match=r"19\.\d s, and \d\.\d s are left") as refused:
            await ask(batcher, "encode", 64, call=Call(finish_by=time.monotonic() + 4.2))
        assert 5 <= (refused.value.retry_after_seconds or 0) <= 10  # 15 s at a third of them


async def test_a_queue_that_stands_is_cut_to_twice_its_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(monkeypatch)
    limits = {"queue_seconds": 60.0, "queue_target_seconds": 2.0}
    async with busy(**limits) as (batcher, engine, recorder):
        lane = batcher.lanes["encode"]
        lane.text_pace = tenth_a_token()
        waiting = [ask(batcher, "encode", 10) for _ in range(30)]
        await queued(batcher, 300)  # up to 30 s are allowed: a burst
        clock.now += 0.11
        waiting.append(ask(batcher, "encode", 10))
        await queued(batcher, 310)
        clock.now += 0.11  # all arrivals of a tenth of a second would wait for more than 2 s
        with pytest.raises(Overloaded, match=r"predicted, and 4\.0 s are allowed"):
            await ask(batcher, "encode", 10)
        assert recorder.refusals == [("encode", "wait")]
        engine.let_through()
        await asyncio.gather(*waiting)
        assert len(await ask(batcher, "encode", 10)) == 1
        assert not lane.congestion.standing


async def test_batches_measured_at_start_make_the_first_forecast() -> None:
    engine = FakeEngine(CONFIG, concurrency=2)
    engine.measured = [(16, 1.6), (64, 6.4)]
    with batching(engine, max_batch_tokens=64) as (batcher, _):
        assert batcher.seconds_alone(640) == pytest.approx(32)
        with pytest.raises(Overloaded, match=r"would take about 6\.\d s"):
            await ask(batcher, "encode", 64, call=Call(finish_by=time.monotonic() + 4))


def lane_beside(own: int, other: int, threads: int = 1) -> Lane:
    """Return a lane in which tokens of maps wait, beside the other lane; 0.1 s a token."""
    engine, limits = FakeEngine(CONFIG, concurrency=threads), BatchLimits(64, 10**6)
    engine.measured, engine.measured_maps = [(1, 0.2), (512, 102.4)], [(1, 0.1), (64, 6.4)]
    lane = Lane("encode", limits, engine, Recorder())
    beside = Lane("attention", limits, engine, Recorder())
    lane.other, beside.other = beside, lane
    for each, tokens in ((lane, own), (beside, other)):
        each.maps.tokens = each.queued_tokens = tokens
        each.queued_texts = int(tokens > 0)
    return lane


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
    lane = lane_beside(own, other, threads)
    assert lane.wait(0, idle=True) == pytest.approx(seconds)
    assert lane.admit(ANYBODY, Demand(1, 30), idle=True) == pytest.approx(seconds + 6)
    lane.batch_seconds = 3.0  # of the running batch, which has to end first
    assert lane.wait(0, idle=False) == pytest.approx(seconds + 3 / threads)


@pytest.mark.parametrize("kind", ["text", "maps", "decomposition"])
async def test_each_kind_of_batches_has_its_pace_and_all_forecast_the_running_one(
    kind: str,
) -> None:
    lane, states = lane_beside(0, 0), np.zeros((30, 8), np.float32)
    assert lane.batch_seconds == pytest.approx(0.9 * 0.2 + 0.1 * 102.4)
    tasks: dict[str, Task] = {
        "text": text(30),
        "maps": MapsTask(states, states, 0, (0,)),
        "decomposition": DecomposeTask(DecompositionStep(np.zeros((1, 1, 8), np.float32), 0), 30),
    }
    lane.push(work := Work([tasks[kind]], ANYBODY), maps=kind == "maps")
    before = lane.text_pace.predict(30), lane.map_pace.predict(30), lane.batch_seconds
    lane.account(work.slots, 0.0)
    after = lane.text_pace.predict(30), lane.map_pace.predict(30), lane.batch_seconds
    changed = [one != other for one, other in zip(before, after, strict=True)]
    assert changed == [kind == "text", kind == "maps", True]
    assert after[2] == pytest.approx(0.9 * before[2])
