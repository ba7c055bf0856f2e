"""Places in a queue of texts that are yet to be tokenised."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from service.engines.fake import FakeEngine
from service.errors import EngineTimeout, Overloaded, Unprocessable
from service.scheduler.admission import Demand
from service.scheduler.pace import Pace
from service.scheduler.submission import Caller
from service.system.budget import ByteBudget, Reservation
from tests.service.harness import CONFIG, GatedEngine, batching, text, until
from tests.service.scheduler.clock import FakeClock
from tests.service.scheduler.test_admission import plugged, tenth_a_token

pytestmark = pytest.mark.anyio
HeldBy = Callable[[str, float], Caller]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return FakeClock(monkeypatch)


@pytest.fixture
def held_by(clock: FakeClock) -> HeldBy:
    """`held_by(client, seconds)`: a caller with these seconds left, and memory of its own."""

    def make(client: str, seconds: float) -> Caller:
        reservation = Reservation(ByteBudget(100))
        return Caller(client, clock.now + seconds, reservation=reservation)

    return make


async def test_a_place_is_counted_until_its_texts_are_queued_or_its_request_has_ended(
    held_by: HeldBy,
) -> None:
    with batching(FakeEngine(CONFIG), max_batch_tokens=64) as (batcher, recorder):
        lane = batcher.lanes["encode"]
        lane.text_pace = tenth_a_token()
        first = batcher.hold_place("encode", Demand(held_by("a", 20), 2, 120, 1.0))
        assert lane.places.tokens == 120
        late = held_by("a", 20)
        with pytest.raises(Overloaded, match=r"would take about 25\.0 s, and 20\.0 s"):
            batcher.hold_place("encode", Demand(late, 2, 120, 1.0))
        assert recorder.refusals == [("encode", "deadline")]
        batcher.hold_place("encode", Demand(held_by("b", 20), 1, 60, 1.0))  # shares come in turn
        assert lane.places.tokens == 180
        first.correct_place(100)
        assert lane.places.tokens == 160, "the estimate is exact once the texts are tokenised"
        await batcher.submit("encode", [text(60), text(40)], first)
        assert lane.places.tokens == 60


async def test_a_request_that_ends_before_its_texts_are_queued_leaves_its_place(
    held_by: HeldBy,
) -> None:
    with batching(FakeEngine(CONFIG)) as (batcher, _):
        caller = held_by("a", 20)
        batcher.hold_place("encode", Demand(caller, 2, 120, 1.0))
        caller.reservation.release()
        assert batcher.lanes["encode"].places.tokens == 0


async def test_texts_that_were_admitted_are_queued_where_others_fill_the_queue(
    held_by: HeldBy,
) -> None:
    engine = GatedEngine()
    with batching(engine, max_queue_tokens=200) as (batcher, _):
        plug = plugged(batcher)
        await until(lambda: engine.batches)
        caller = batcher.hold_place("encode", Demand(held_by("a", 60), 1, 80, 0.0))
        with pytest.raises(Overloaded, match="the queue holds 80 of 200 tokens"):
            await batcher.submit("encode", [text(64)])  # more than half of what is left
        other = asyncio.create_task(batcher.submit("encode", [text(55)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens == 55)
        mine = asyncio.create_task(batcher.submit("encode", [text(80)], caller))
        await until(lambda: batcher.lanes["encode"].queued_tokens == 135)
        engine.let_through()
        await asyncio.gather(plug, other, mine)


async def test_texts_with_far_more_tokens_than_expected_are_admitted_anew(
    held_by: HeldBy,
) -> None:
    engine = GatedEngine()
    with batching(engine, max_queue_tokens=200) as (batcher, _):
        plug = plugged(batcher)
        await until(lambda: engine.batches)
        waiting = asyncio.create_task(batcher.submit("encode", [text(60)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens == 60)
        for tokens, fits in ((75, True), (76, False)):
            caller = batcher.hold_place("encode", Demand(held_by("a", 60), 1, 60, 0.0))
            submitted = asyncio.create_task(batcher.submit("encode", [text(tokens)], caller))
            if fits:
                await until(lambda: batcher.lanes["encode"].queued_tokens == 135)
                submitted.cancel()
                await asyncio.gather(submitted, return_exceptions=True)
            else:
                with pytest.raises(Overloaded, match="this one has 76"):
                    await submitted
        engine.let_through()
        await asyncio.gather(plug, waiting)


async def test_what_batches_took_meanwhile_may_still_refuse_what_was_admitted(
    held_by: HeldBy,
) -> None:
    """Else all that were admitted by a forecast that was too short would miss their deadline."""
    with batching(FakeEngine(CONFIG), max_batch_tokens=64) as (batcher, _):
        callers = [
            batcher.hold_place("encode", Demand(held_by("a", 20), 1, 120, 0.0)) for _ in range(2)
        ]
        lane = batcher.lanes["encode"]
        lane.text_pace = tenth_a_token()
        await batcher.submit("encode", [text(60)] * 2, callers[0])  # alone it fits
        lane.text_pace = Pace()
        for tokens in (1, 64):
            lane.text_pace.account(tokens, tokens / 5)
        with pytest.raises(Overloaded, match=r"would take about 2\d\.\d s"):
            await batcher.submit("encode", [text(60)] * 2, callers[1])


async def test_an_estimate_beyond_the_queue_is_no_verdict_on_the_request(
    held_by: HeldBy,
) -> None:
    with batching(FakeEngine(CONFIG), max_queue_tokens=200) as (batcher, _):
        caller = batcher.hold_place("encode", Demand(held_by("a", 60), 1, 150, 0.0))
        await batcher.submit("encode", [text(90)], caller)
        with pytest.raises(Unprocessable, match="at most 100"):
            await batcher.submit("encode", [text(120)])


async def test_a_deadline_that_ended_a_request_makes_forecasts_longer(clock: FakeClock) -> None:
    engine = GatedEngine()
    with batching(engine, max_batch_tokens=64) as (batcher, _):
        lane = batcher.lanes["encode"]
        lane.text_pace.account(64, 0.2)
        soon = Caller(finish_by=clock.now + 0.5)
        late = asyncio.create_task(batcher.submit("encode", [text(64)], soon))
        await until(lambda: engine.batches)
        clock.now += 0.5
        with pytest.raises(EngineTimeout):
            await late
        assert lane.margin.mean > 1
        engine.let_through()
