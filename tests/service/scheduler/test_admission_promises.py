"""Requests that promise work: when one is admitted beside others, and when one that is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from service.engines.contract import Output, Task
from service.engines.fake import FakeEngine
from service.errors import Overloaded
from service.scheduler.promises import Promise
from service.scheduler.scheduler import Scheduler
from service.scheduler.submission import Caller
from tests.service.harness import CONFIG, batching, text, until
from tests.service.scheduler.clock import FakeClock

pytestmark = pytest.mark.anyio


class Engine(FakeEngine):
    """Computes ten tokens a second, as was measured at start."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(CONFIG)
        self.measured = [(1, 0.1), (64, 6.4)]
        self.clock = clock

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        self.clock.now += sum(task.tokens for task in tasks) / 10
        return super().run(tasks)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock by hand; seconds after which to try again are not drawn at random."""
    monkeypatch.setattr("service.scheduler.admission.random.uniform", lambda low, _: low)
    return FakeClock(monkeypatch)


async def ask(scheduler: Scheduler, clock: FakeClock, *, writing: float = 0.0) -> Promise:
    """Send a request of 201 tokens that needs 101 of them within 30 seconds."""
    await until(lambda: scheduler._dispatcher.workers.idle)
    promise = Promise(201, 101, writing_seconds=writing)
    await scheduler.submit("attention", [text(1)], Caller("", clock.now + 30, promise))
    return promise


async def test_who_waits_as_long_as_he_is_told_is_admitted(clock: FakeClock) -> None:
    """Two take 20 s of 30, a third 30.1: after 20 s each has 100 tokens left, then fewer."""
    with batching(Engine(clock)) as (scheduler, _):
        admitted = [await ask(scheduler, clock) for _ in range(2)]
        with pytest.raises(Overloaded, match=r"about 30\.1 s, and 30\.0 s are left") as refused:
            await ask(scheduler, clock)
        assert refused.value.retry_after_seconds == 21
        for seconds in (20, 1):
            clock.now += seconds
            for promise in admitted:
                promise.keep(5 * seconds)
            if seconds == 20:
                with pytest.raises(Overloaded, match=r"about 30\.1 s") as refused:
                    await ask(scheduler, clock)
                assert refused.value.retry_after_seconds == 1
        await ask(scheduler, clock)


async def test_what_is_written_has_its_time_before_the_deadline(clock: FakeClock) -> None:
    with batching(Engine(clock)) as (scheduler, _):
        await ask(scheduler, clock)
        await ask(scheduler, clock, writing=9.0)
        with pytest.raises(Overloaded, match=r"and 19\.0 s are left"):
            await ask(scheduler, clock, writing=11.0)


async def test_late_batches_of_small_requests_do_not_lengthen_promised_work(
    clock: FakeClock,
) -> None:
    """The pace has what the batches took; the margin is the error of waits in the queue."""
    with batching(Engine(clock)) as (scheduler, _):
        scheduler.lanes["attention"].margin.mean = 3.0
        await ask(scheduler, clock)
        await ask(scheduler, clock)


async def test_refusals_beside_promised_work_leave_the_pace_as_it_is(clock: FakeClock) -> None:
    """Batches of the others correct the pace where it is wrong."""
    with batching(Engine(clock)) as (scheduler, _):
        for _ in range(2):
            await ask(scheduler, clock)
        before = scheduler.seconds_alone("attention", 64)
        for _ in range(5):
            with pytest.raises(Overloaded):
                await ask(scheduler, clock)
        assert scheduler.seconds_alone("attention", 64) == before
        assert scheduler.lanes["attention"].promises.before("", 200) == 400


async def test_tokens_are_promised_until_they_are_computed(clock: FakeClock) -> None:
    """Tokens in the queue go before the last of a newcomer, too."""
    with batching(Engine(clock)) as (scheduler, _):
        promise, left = await ask(scheduler, clock), []
        caller = Caller("", clock.now + 30, promise)

        def reduced(_: Output) -> None:
            left.append(promise.tokens)

        await scheduler.resume("attention", [text(30)], [reduced], caller)
        assert left == [200]
        assert promise.tokens == 170
