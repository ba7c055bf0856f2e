"""Places of texts yet to be tokenised, requests that promise work, and reserved tokens."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

import pytest

from service.engines.contract import Output, Task
from service.engines.fake import FakeEngine
from service.errors import EngineTimeout, Overloaded, Unprocessable
from service.scheduler.admission import Demand
from service.scheduler.call import Call, PendingCalls, PendingWork, fair_shares
from service.scheduler.pace import Pace
from service.scheduler.scheduler import Scheduler
from service.system.budget import ByteBudget, Reservation
from tests.service.harness import CONFIG, GatedEngine, batching, text, until
from tests.service.scheduler.clock import FakeClock
from tests.service.scheduler.test_admission import plugged, tenth_a_token

pytestmark = pytest.mark.anyio


HeldBy = Callable[[str, float], Call]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return FakeClock(monkeypatch)


@pytest.fixture
def held_by(clock: FakeClock) -> HeldBy:
    """`held_by(client, seconds)`: a caller with these seconds left, and memory of its own."""

    def make(client: str, seconds: float) -> Call:
        reservation = Reservation(ByteBudget(100))
        return Call(client, clock.now + seconds, reservation=reservation)

    return make


async def test_a_place_is_counted_until_its_texts_are_queued_or_its_request_has_ended(
    held_by: HeldBy,
) -> None:
    with batching(FakeEngine(CONFIG), max_batch_tokens=64) as (batcher, recorder):
        lane = batcher.lanes["encode"]
        lane.text_pace = tenth_a_token()
        first = batcher.admit("encode", held_by("a", 20), Demand(2, 120, 1.0, exact=False))
        assert lane.estimates.tokens == 120
        late = held_by("a", 20)
        with pytest.raises(Overloaded, match=r"would take about 25\.0 s, and 20\.0 s"):
            batcher.admit("encode", late, Demand(2, 120, 1.0, exact=False))
        assert recorder.refusals == [("encode", "deadline")]
        other = Demand(1, 60, 1.0, exact=False)
        batcher.admit("encode", held_by("b", 20), other)  # shares come in turn
        assert lane.estimates.tokens == 180
        first.correct_estimate(100)
        assert lane.estimates.tokens == 160, "the estimate is exact once the texts are tokenised"
        await batcher.submit("encode", [text(60), text(40)], first)
        assert lane.estimates.tokens == 60


async def test_a_request_that_ends_before_its_texts_are_queued_leaves_its_place(
    held_by: HeldBy,
) -> None:
    with batching(FakeEngine(CONFIG)) as (batcher, _):
        caller = held_by("a", 20)
        batcher.admit("encode", caller, Demand(2, 120, 1.0, exact=False))
        caller.reservation.release()
        assert batcher.lanes["encode"].estimates.tokens == 0


async def test_texts_that_were_admitted_are_queued_where_others_fill_the_queue(
    held_by: HeldBy,
) -> None:
    engine = GatedEngine()
    with batching(engine, max_queue_tokens=200) as (batcher, _):
        plug = plugged(batcher)
        await until(lambda: engine.batches)
        caller = batcher.admit("encode", held_by("a", 60), Demand(1, 80, 0.0, exact=False))
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
            caller = batcher.admit("encode", held_by("a", 60), Demand(1, 60, 0.0, exact=False))
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
            batcher.admit("encode", held_by("a", 20), Demand(1, 120, exact=False)) for _ in range(2)
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
        caller = batcher.admit("encode", held_by("a", 60), Demand(1, 150, 0.0, exact=False))
        await batcher.submit("encode", [text(90)], caller)
        with pytest.raises(Unprocessable, match="at most 100"):
            await batcher.submit("encode", [text(120)])


async def test_a_deadline_that_ended_a_request_makes_forecasts_longer(clock: FakeClock) -> None:
    engine = GatedEngine()
    with batching(engine, max_batch_tokens=64) as (batcher, _):
        lane = batcher.lanes["encode"]
        lane.text_pace.account(64, 0.2)
        soon = Call(finish_by=clock.now + 0.5)
        late = asyncio.create_task(batcher.submit("encode", [text(64)], soon))
        await until(lambda: engine.batches)
        clock.now += 0.5
        with pytest.raises(EngineTimeout):
            await late
        assert lane.margin.mean > 1
        engine.let_through()


class Engine(FakeEngine):
    """Computes ten tokens a second, as was measured at start."""

    def __init__(self, fixed_clock: FakeClock) -> None:
        super().__init__(CONFIG)
        self.measured = [(1, 0.1), (64, 6.4)]
        self.clock = fixed_clock

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        self.clock.now += sum(task.tokens for task in tasks) / 10
        return super().run(tasks)


@pytest.fixture
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock by hand; seconds after which to try again are not drawn at random."""
    monkeypatch.setattr("service.scheduler.admission.random.uniform", lambda low, _: low)
    return FakeClock(monkeypatch)


async def ask(scheduler: Scheduler, fixed_clock: FakeClock, *, writing: float = 0.0) -> PendingWork:
    """Send a request of 201 tokens that needs 101 of them within 30 seconds."""
    await until(lambda: scheduler._dispatcher.idle)
    promise = PendingWork(201, 101, writing_seconds=writing)
    await scheduler.submit("attention", [text(1)], Call("", fixed_clock.now + 30, promise))
    return promise


async def test_who_waits_as_long_as_he_is_told_is_admitted(fixed_clock: FakeClock) -> None:
    """Two take 20 s of 30, a third 30.1: after 20 s each has 100 tokens left, then fewer."""
    with batching(Engine(fixed_clock)) as (scheduler, _):
        admitted = [await ask(scheduler, fixed_clock) for _ in range(2)]
        with pytest.raises(Overloaded, match=r"about 30\.1 s, and 30\.0 s are left") as refused:
            await ask(scheduler, fixed_clock)
        assert refused.value.retry_after_seconds == 21
        for seconds in (20, 1):
            fixed_clock.now += seconds
            for promise in admitted:
                promise.keep(5 * seconds)
            if seconds == 20:
                with pytest.raises(Overloaded, match=r"about 30\.1 s") as refused:
                    await ask(scheduler, fixed_clock)
                assert refused.value.retry_after_seconds == 1
        await ask(scheduler, fixed_clock)


async def test_what_is_written_has_its_time_before_the_deadline(fixed_clock: FakeClock) -> None:
    with batching(Engine(fixed_clock)) as (scheduler, _):
        await ask(scheduler, fixed_clock)
        await ask(scheduler, fixed_clock, writing=9.0)
        with pytest.raises(Overloaded, match=r"and 19\.0 s are left"):
            await ask(scheduler, fixed_clock, writing=11.0)


async def test_late_batches_of_small_requests_do_not_lengthen_promised_work(
    fixed_clock: FakeClock,
) -> None:
    """The pace has what the batches took; the margin is the error of waits in the queue."""
    with batching(Engine(fixed_clock)) as (scheduler, _):
        scheduler.lanes["attention"].margin.mean = 3.0
        await ask(scheduler, fixed_clock)
        await ask(scheduler, fixed_clock)


async def test_refusals_beside_promised_work_leave_the_pace_as_it_is(
    fixed_clock: FakeClock,
) -> None:
    """Batches of the others correct the pace where it is wrong."""
    with batching(Engine(fixed_clock)) as (scheduler, _):
        for _ in range(2):
            await ask(scheduler, fixed_clock)
        before = scheduler.seconds_alone("attention", 64)
        for _ in range(5):
            with pytest.raises(Overloaded):
                await ask(scheduler, fixed_clock)
        assert scheduler.seconds_alone("attention", 64) == before
        assert scheduler.lanes["attention"].pending.before("", 200) == 400


async def test_tokens_are_promised_until_they_are_computed(fixed_clock: FakeClock) -> None:
    """Tokens in the queue go before the last of a newcomer, too."""
    with batching(Engine(fixed_clock)) as (scheduler, _):
        promise, left = await ask(scheduler, fixed_clock), []
        caller = Call("", fixed_clock.now + 30, promise)

        def reduced(_: Output) -> None:
            left.append(promise.tokens)

        await scheduler.resume("attention", [text(30)], [reduced], caller)
        assert left == [200]
        assert promise.tokens == 170


async def test_work_that_is_submitted_at_once_is_not_pending() -> None:
    with batching(FakeEngine(CONFIG)) as (scheduler, _):
        for _ in range(3):
            await scheduler.submit("encode", [text(8)], Call(pending=PendingWork(8)))
        assert not scheduler.lanes["encode"].pending.open


def test_other_clients_and_requests_go_before_in_fair_shares() -> None:
    promises, long, short = PendingCalls(), PendingWork(1000), PendingWork(30)
    promises.add(Call("a"), long)
    promises.add(Call("a"), short)
    assert promises.before("a", 0) == 0
    assert promises.before("a", 100) == 100 + 30
    assert promises.before("b", 100) == 100
    promises.add(Call("b"), PendingWork(50))
    assert promises.before("b", 100) == 50 + 150
    long.keep(990)
    assert promises.before("b", 100) == 50 + 40


def test_what_was_kept_or_has_ended_is_forgotten() -> None:
    promises, kept, ended = PendingCalls(), PendingWork(10), PendingWork(10)
    for promise in (kept, ended):
        promises.add(Call("a"), promise)
    kept.keep(11)
    ended.end()
    assert promises.before("b", 100) == 0
    assert not promises.open


@pytest.mark.parametrize(
    ("sizes", "total", "shares"),
    [([10, 10], 8, [4, 4]), ([2, 10, 10], 12, [2, 5, 5]), ([3, 1], 9, [3, 1]), ([], 5, [])],
    ids=str,
)
def test_what_one_does_not_take_is_divided_among_the_others(
    sizes: list[int], total: int, shares: list[int]
) -> None:
    assert fair_shares(sizes, total) == shares


def test_room_comes_when_enough_of_the_promised_work_is_computed() -> None:
    """At 10 tokens a second: of two others 120 tokens are left after 18 s, of 300 and 60 each."""
    promises = PendingCalls()
    for tokens in (150, 150):
        promises.add(Call("a"), PendingWork(tokens))
    assert promises.seconds_until_room("a", 100, 300, 10.0, 0.0) == 1
    assert promises.seconds_until_room("a", 100, 220, 10.0, 0.0) == 18
    assert promises.seconds_until_room("a", 100, 100, 10.0, 0.0) == 30
    assert promises.seconds_until_room("a", 100, 0, 10.0, 0.0) == 31, "all of it is computed"
    assert promises.seconds_until_room("b", 100, 150, 10.0, 0.0) == 25, "50 tokens of another"


def test_room_comes_when_the_deadline_of_a_promise_has_passed() -> None:
    promises = PendingCalls()
    promises.add(Call("a", finish_by=29.0), PendingWork(10**6))
    promises.add(Call("a", finish_by=math.inf), PendingWork(10**6))
    assert promises.seconds_until_room("a", 100, 200, 10.0, 0.0) == 29
