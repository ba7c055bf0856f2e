"""Work that is not queued yet: of texts yet to be tokenised, and of requests that promise work."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

import pytest

from service.engines.contract import Output, Task
from service.engines.fake import FakeEngine
from service.errors import EngineTimeout, Overloaded, Unprocessable
from service.scheduler.call import Call, Demand, PendingCalls, PendingWork, fair_shares
from service.scheduler.scheduler import Scheduler
from service.system.budget import ByteBudget, Reservation
from tests.service.harness import CONFIG, GatedEngine, batching, text, until
from tests.service.scheduler.requests import FakeClock, ask, busy, queued, tenth_a_token

pytestmark = pytest.mark.anyio

HeldBy = Callable[[str, float], Call]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock by hand; seconds after which to try again are not drawn at random."""
    monkeypatch.setattr("service.scheduler.call.random.uniform", lambda low, _: low)
    return FakeClock(monkeypatch)


@pytest.fixture
def held_by(clock: FakeClock) -> HeldBy:
    """`held_by(client, seconds)`: a caller with these seconds left, and memory of its own."""

    def make(client: str, seconds: float) -> Call:
        return Call(client, clock.now + seconds, reservation=Reservation(ByteBudget(100)))

    return make


def estimated(texts: int, tokens: int, seconds: float = 0.0) -> Demand:
    return Demand(texts, tokens, seconds, exact=False)


async def test_an_estimate_is_counted_until_its_texts_are_queued_or_its_request_has_ended(
    held_by: HeldBy,
) -> None:
    with batching(FakeEngine(CONFIG), max_batch_tokens=64) as (batcher, recorder):
        lane, demand = batcher.lanes["encode"], estimated(2, 120, 1.0)
        lane.text_pace = tenth_a_token()
        first = batcher.admit("encode", held_by("a", 20), demand)
        assert lane.estimates.tokens == 120
        with pytest.raises(Overloaded, match=r"would take about 25\.0 s, and 20\.0 s"):
            batcher.admit("encode", held_by("a", 20), demand)
        assert recorder.refusals == [("encode", "deadline")]
        other = held_by("b", 20)
        batcher.admit("encode", other, estimated(1, 60, 1.0))  # shares come in turn
        assert lane.estimates.tokens == 180
        first.correct_estimate(100)
        assert lane.estimates.tokens == 160, "the estimate is exact once the texts are tokenised"
        await ask(batcher, "encode", 60, call=first)
        assert lane.estimates.tokens == 40 + 60
        await batcher.submit("encode", [text(40)], first, resumed=True)
        assert lane.estimates.tokens == 60
        assert other.reservation
        other.reservation.release()
        assert lane.estimates.tokens == 0


async def test_texts_that_were_admitted_are_queued_where_others_fill_the_queue(
    held_by: HeldBy,
) -> None:
    async with busy(max_queue_tokens=200) as (batcher, engine, _):
        mine = batcher.admit("encode", held_by("a", 60), estimated(1, 80))
        with pytest.raises(Overloaded, match="the queue holds 80 of 200 tokens"):
            await ask(batcher, "encode", 64)  # more than half of what is left
        waiting = [ask(batcher, "encode", 55)]
        await queued(batcher, 55)
        waiting.append(ask(batcher, "encode", 80, call=mine))
        await queued(batcher, 135)
        engine.let_through()
        await asyncio.gather(*waiting)


async def test_texts_with_far_more_tokens_than_estimated_are_admitted_anew(
    held_by: HeldBy,
) -> None:
    async with busy(max_queue_tokens=200) as (batcher, engine, _):
        waiting = [ask(batcher, "encode", 60)]
        await queued(batcher, 60)
        more = batcher.admit("encode", held_by("a", 60), estimated(1, 60))
        with pytest.raises(Overloaded, match="this one has 76"):
            await ask(batcher, "encode", 76, call=more)
        fits = batcher.admit("encode", held_by("a", 60), estimated(1, 60))
        waiting.append(ask(batcher, "encode", 75, call=fits))
        await queued(batcher, 135)
        engine.let_through()
        await asyncio.gather(*waiting)


async def test_what_batches_took_meanwhile_may_still_refuse_what_was_admitted(
    held_by: HeldBy,
) -> None:
    """Else all that were admitted by a forecast that was too short would miss their deadline."""
    with batching(FakeEngine(CONFIG), max_batch_tokens=64) as (batcher, _):
        first, second = (batcher.admit("encode", held_by("a", 20), estimated(1, 120)) for _ in "ab")
        lane = batcher.lanes["encode"]
        lane.text_pace = tenth_a_token()
        await ask(batcher, "encode", 60, 60, call=first)  # alone it fits
        lane.text_pace = tenth_a_token(2)
        with pytest.raises(Overloaded, match=r"would take about 2\d\.\d s"):
            await ask(batcher, "encode", 60, 60, call=second)


async def test_an_estimate_beyond_the_queue_is_no_verdict_on_the_request(held_by: HeldBy) -> None:
    with batching(FakeEngine(CONFIG), max_queue_tokens=200) as (batcher, _):
        caller = batcher.admit("encode", held_by("a", 60), estimated(1, 150))
        await ask(batcher, "encode", 90, call=caller)
        with pytest.raises(Unprocessable, match="at most 100"):
            await ask(batcher, "encode", 120)


async def test_a_deadline_that_ended_a_request_makes_forecasts_longer(clock: FakeClock) -> None:
    engine = GatedEngine()
    with batching(engine, max_batch_tokens=64) as (batcher, _):
        lane = batcher.lanes["encode"]
        lane.text_pace.account(64, 0.2)
        late = ask(batcher, "encode", 64, call=Call(finish_by=clock.now + 0.5))
        await until(lambda: engine.batches)
        clock.now += 0.5
        with pytest.raises(EngineTimeout):
            await late
        assert lane.margin.factor > 1
        engine.let_through()


class Engine(FakeEngine):
    """Computes ten tokens a second, as was measured at start."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(CONFIG)
        self.measured = [(1, 0.1), (64, 6.4)]
        self.clock = clock

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        self.clock.now += sum(task.tokens for task in tasks) / 10
        return super().run(tasks)


async def promise(
    scheduler: Scheduler, clock: FakeClock, needed: int = 101, *, writing: float = 0.0
) -> PendingWork:
    """Send a request of 201 tokens, or more, that needs some of them within 30 seconds."""
    await until(lambda: scheduler._idle[False])
    work = PendingWork(max(201, needed), needed, writing_seconds=writing)
    await ask(scheduler, "attention", 1, call=Call("", clock.now + 30, work))
    return work


async def test_who_waits_as_long_as_he_is_told_is_admitted(clock: FakeClock) -> None:
    """Two take 20 s of 30, a third 30.1: after 20 s each has 100 tokens left, then fewer."""
    with batching(Engine(clock)) as (scheduler, _):
        admitted = [await promise(scheduler, clock) for _ in range(2)]
        for seconds, wait in ((20, 21), (1, 1)):
            with pytest.raises(Overloaded, match=r"about 30\.1 s, and 30\.0 s are left") as refused:
                await promise(scheduler, clock)
            assert refused.value.retry_after_seconds == wait
            clock.now += seconds
            for work in admitted:
                work.keep(5 * seconds)
        await promise(scheduler, clock)


@pytest.mark.parametrize(("needed", "writing", "left"), [(302, 0.0, 30), (102, 20.0, 10)])
async def test_a_request_alone_needs_time_for_what_it_promises_and_for_its_reply(
    needed: int, writing: float, left: int, clock: FakeClock
) -> None:
    with batching(Engine(clock), max_queue_tokens=200) as (scheduler, recorder):
        with pytest.raises(Overloaded, match=rf"would take about {left}\.2 s, and {left}\.0 s"):
            await promise(scheduler, clock, needed, writing=writing)
        assert recorder.refusals == [("attention", "deadline")]
        work = await promise(scheduler, clock, needed - 10, writing=writing)
        assert (work.tokens, work.needed) == (max(201, needed - 10) - 1, needed - 11)
        assert scheduler.lanes["attention"].margin.factor < 1.1, "the queue's time was as predicted"


async def test_late_batches_of_small_requests_do_not_lengthen_promised_work(
    clock: FakeClock,
) -> None:
    """The pace has what the batches took; the margin is the error of waits in the queue."""
    with batching(Engine(clock)) as (scheduler, _):
        for _ in range(2):
            scheduler.lanes["attention"].margin.factor = 3.0
            await promise(scheduler, clock)


async def test_refusals_beside_promised_work_leave_the_pace_as_it_is(clock: FakeClock) -> None:
    """Batches of the others correct the pace where it is wrong."""
    with batching(Engine(clock)) as (scheduler, _):
        for _ in range(2):
            await promise(scheduler, clock)
        before = scheduler.seconds_alone(64)
        for _ in range(5):
            with pytest.raises(Overloaded):
                await promise(scheduler, clock)
        assert scheduler.seconds_alone(64) == before
        assert scheduler.lanes["attention"].pending.before("", 200) == 400


async def test_tokens_are_promised_until_they_are_computed(clock: FakeClock) -> None:
    """Tokens in the queue go before the last of a newcomer, too."""
    with batching(Engine(clock)) as (scheduler, _):
        work, left = await promise(scheduler, clock), []
        caller = Call("", clock.now + 30, work)

        def reduced(_: Output) -> None:
            left.append(work.tokens)

        await scheduler.submit("attention", [text(30)], caller, [reduced], resumed=True)
        assert (left, work.tokens) == ([200], 170)


async def test_work_that_is_done_is_forgotten() -> None:
    with batching(FakeEngine(CONFIG)) as (scheduler, _):
        pending = scheduler.lanes["encode"].pending
        for _ in range(3):
            await ask(scheduler, "encode", 8, call=Call(pending=PendingWork(8)))
        assert not pending.open
        ended, kept = PendingWork(10), PendingWork(10)
        for work in (ended, kept):
            pending.add(Call("a"), work)
        ended.end()
        kept.keep(11)
        assert pending.before("b", 100) == 0
        assert not pending.open, "it costs no later request anything"


def test_other_clients_and_requests_go_before_in_fair_shares() -> None:
    pending, long = PendingCalls(), PendingWork(1000)
    pending.add(Call("a"), long)
    pending.add(Call("a"), PendingWork(30))
    assert pending.before("a", 0) == 0
    assert pending.before("a", 100) == 100 + 30
    assert pending.before("b", 100) == 100
    pending.add(Call("b"), PendingWork(50))
    assert pending.before("b", 100) == 50 + 150
    long.keep(990)
    assert pending.before("b", 100) == 50 + 40


@pytest.mark.parametrize(
    ("sizes", "total", "shares"),
    [([10, 10], 8, [4, 4]), ([2, 10, 10], 12, [2, 5, 5]), ([3, 1], 9, [3, 1]), ([], 5, [])],
    ids=str,
)
def test_what_one_does_not_take_is_divided_among_the_others(
    sizes: list[int], total: int, shares: list[int]
) -> None:
    assert fair_shares(sizes, total) == shares


def test_room_comes_when_enough_is_computed_or_a_deadline_has_passed() -> None:
    """At 10 tokens a second: of two others 120 tokens are left after 18 s, of 300 and 60 each."""
    pending, others = PendingCalls(), PendingCalls()
    for tokens in (150, 150):
        pending.add(Call("a"), PendingWork(tokens))
    assert pending.seconds_until_room("a", 100, 300, 10.0, 0.0) == 1
    assert pending.seconds_until_room("a", 100, 220, 10.0, 0.0) == 18
    assert pending.seconds_until_room("a", 100, 100, 10.0, 0.0) == 30
    assert pending.seconds_until_room("a", 100, 0, 10.0, 0.0) == 31, "all of it is computed"
    assert pending.seconds_until_room("b", 100, 150, 10.0, 0.0) == 25, "50 tokens of another"
    for by in (29.0, math.inf):
        others.add(Call("a", finish_by=by), PendingWork(10**6))
    assert others.seconds_until_room("a", 100, 200, 10.0, 0.0) == 29
