"""Failed batches in halves, and errors of engines, each of which reaches its requests alone."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engines.contract import Output, Pooling, Task, TextTask
from service.errors import EngineFailed, EngineOutOfMemory, EngineUnavailable, ServiceError
from service.scheduler.outputs import MOST_RUNS
from tests.service.harness import GatedEngine, assert_same, batching, text, until
from tests.service.scheduler.requests import ask, busy, queued

pytestmark = pytest.mark.anyio

POISON = 13
"""Length of the text over which an engine fails."""
SECRET = "the text of a user"
Outcome = dict[int, bool | type[ServiceError]]


class Failing(GatedEngine):
    """Engine that fails over some texts, or over too many in a batch, once it is let through."""

    def __init__(
        self, bad: Collection[int] = (), room: int = 10**9, error: BaseException | None = None
    ) -> None:
        """Fail over texts of `POISON` tokens, and over numbered texts that are `bad`."""
        super().__init__()
        self.bad, self.room, self.error = bad, room, error or RuntimeError(SECRET)

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        outputs = super().run(tasks)
        if len(tasks) > self.room:
            raise EngineOutOfMemory("full")
        numbers = [task.input_ids[0] for task in tasks if isinstance(task, TextTask)]
        lengths = [task.tokens for task in tasks]
        if POISON in lengths or (max(lengths) > 1 and not set(numbers).isdisjoint(self.bad)):
            raise self.error
        return outputs


def numbered(number: int) -> TextTask:
    ids = np.full(4, number, np.int64)
    return TextTask(ids, np.zeros_like(ids), pooling=Pooling(2, "mean"))


async def outcomes(engine: Failing, calls: Sequence[Sequence[int]]) -> Outcome:
    """Return whether each text of one batch had the right answer, or the type of its error."""
    found: Outcome = {}
    async with busy(engine, max_batch_tokens=10**6) as (scheduler, _, _):
        requests = [
            asyncio.create_task(scheduler.submit("encode", [*map(numbered, numbers)]))
            for numbers in calls
        ]
        await queued(scheduler, 4 * sum(map(len, calls)))
        engine.let_through()
        for numbers, request in zip(calls, requests, strict=True):
            try:
                slots = await request
            except ServiceError as error:
                found |= dict.fromkeys(numbers, type(error))
            else:
                for number, slot in zip(numbers, slots, strict=True):
                    assert_same(slot.value, engine.expected(numbered(number)))
                    found[number] = True
    assert engine.batches.pop(0) == [1]
    return found


def each_alone(size: int) -> list[list[int]]:
    return [[number] for number in range(size)]


@settings(max_examples=25, deadline=None)
@given(size=st.integers(2, 128), data=st.data())
def test_one_bad_text_fails_alone(size: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, size - 1))
    engine = Failing({bad})
    found = asyncio.run(outcomes(engine, each_alone(size)))
    assert found == {n: EngineFailed if n == bad else True for n in range(size)}
    assert len(engine.batches) <= 2 * math.ceil(math.log2(size)) + 1


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 64), bad=st.sets(st.integers(0, 63)))
def test_every_text_has_one_outcome_and_no_bad_one_is_answered(size: int, bad: set[int]) -> None:
    engine = Failing(bad)
    found = asyncio.run(outcomes(engine, each_alone(size)))
    assert found.keys() == set(range(size))
    assert all(found[number] is EngineFailed for number in found if number in bad)
    assert len(engine.batches) <= 2 * MOST_RUNS


async def test_where_everything_fails_the_engine_is_not_asked_for_ever() -> None:
    engine = Failing(range(500))
    assert set((await outcomes(engine, each_alone(500))).values()) == {EngineFailed}
    assert len(engine.batches) <= MOST_RUNS + math.ceil(math.log2(500))


async def test_an_error_that_does_not_come_again_hurts_nobody() -> None:
    class Once(Failing):
        def run(self, tasks: Sequence[Task]) -> list[Output]:
            self.bad = {0} if len(tasks) == 4 else ()
            return super().run(tasks)

    engine = Once()
    assert await outcomes(engine, each_alone(4)) == dict.fromkeys(range(4), True)
    assert engine.batches == [[4] * 4, [4] * 2, [4] * 2]


@pytest.mark.parametrize(
    ("room", "failed"), [(8, 0), (4, 0), (3, 8), (1, 8)], ids=["fits", "halves", "less", "one"]
)
async def test_out_of_memory_is_halved_once(room: int, failed: int) -> None:
    engine = Failing(room=room)
    found = await outcomes(engine, [range(8)])
    assert sum(result is EngineOutOfMemory for result in found.values()) == failed
    sizes = [len(batch) for batch in engine.batches]
    expected = [8] if room == 8 else [8, 4, 4]
    assert sizes == expected[: len(sizes)]  # the second half is left out if the call has failed
    assert failed or sizes == expected


async def test_what_one_call_waits_for_fails_whole() -> None:
    engine = Failing({3})
    assert set((await outcomes(engine, [range(8)])).values()) == {EngineFailed}
    assert len(engine.batches) == 1


class Peculiar(BaseException):
    """Error that is not an `Exception`."""


@pytest.mark.parametrize(
    "kind", [KeyError, StopIteration, asyncio.CancelledError, Peculiar, SystemExit]
)
async def test_a_foreign_exception_is_named_without_its_message(kind: type[BaseException]) -> None:
    engine = Failing(error=kind(SECRET))
    engine.let_through()
    with batching(engine) as (batcher, recorder):
        async with asyncio.timeout(60):
            with pytest.raises(EngineFailed) as failed:
                await ask(batcher, "encode", POISON)
        assert failed.value.detail == f"the engine raised {kind.__name__}"
        assert len(await ask(batcher, "encode", 8)) == 1
        assert recorder.failed == ["encode"]


async def test_a_failed_batch_fails_those_whose_text_it_is() -> None:
    async with busy(Failing()) as (batcher, engine, recorder):
        doomed = [
            ask(batcher, "encode", *lengths)
            for lengths in ([POISON], [POISON - 1], [POISON, *[63] * 5])
        ]
        lucky = ask(batcher, "encode", 60)
        await queued(batcher, 3 * POISON - 1 + 5 * 63 + 60)
        engine.let_through()
        errors = await asyncio.gather(*doomed, return_exceptions=True)
        assert [type(error) for error in errors] == [EngineFailed, list, EngineFailed]
        assert_same((await lucky)[0].value, engine.expected(text(60)))
        assert batcher.lanes["encode"].queued_tokens == 0
        assert recorder.failed == ["encode"] * 2
        assert recorder.drops == ["encode"] * 5
    # the failed batch in halves, down to the texts that fail; what is left of their request is not
    assert engine.batches == [[1], [13, 13, 12], [13], [13, 12], [13], [12], [60]]


async def test_nothing_is_run_again_for_a_client_who_left() -> None:
    async with busy(Failing()) as (batcher, engine, _):
        stays, *leave = [ask(batcher, "encode", POISON) for _ in range(4)]
        await queued(batcher, 4 * POISON)
        engine.let_through(1)
        await until(lambda: len(engine.batches) == 2)
        for request in leave:
            request.cancel()
        await asyncio.wait(leave)
        engine.let_through()
        with pytest.raises(EngineFailed):
            await stays
    assert engine.batches == [[1], [POISON] * 4, [POISON]]


async def test_each_request_of_a_failed_batch_has_an_error_of_its_own() -> None:
    engine = Failing(error=EngineUnavailable("down", retry_after_seconds=7))
    async with busy(engine) as (batcher, _, _):
        both = [ask(batcher, "encode", POISON) for _ in range(2)]
        await queued(batcher, 2 * POISON)
        engine.let_through()
        first, second = await asyncio.gather(*both, return_exceptions=True)
        for error in (first, second):  # as the engine has raised it
            assert isinstance(error, EngineUnavailable)
            assert (error.detail, error.retry_after_seconds) == ("down", 7)
        assert first is not second  # each has a traceback of its own
    assert engine.batches == [[1], [POISON] * 2]


async def test_the_rest_of_a_failed_request_is_not_computed_even_if_the_loop_is_late() -> None:
    engine = Failing()
    engine.let_through()
    with batching(engine) as (batcher, recorder):
        failing = ask(batcher, "encode", POISON, *[63] * 5)
        await asyncio.sleep(0)
        while not batcher._idle[False]:
            time.sleep(0.001)  # the event loop stands still, the worker does not
        with pytest.raises(EngineFailed):
            await failing
        assert engine.batches == [[POISON]]
        assert recorder.drops == ["encode"] * 5


async def test_a_fault_of_the_scheduler_itself_ends_its_requests_and_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without an engine's error to blame, the service has to restart."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError(SECRET)

    monkeypatch.setattr("service.scheduler.scheduler.compute", broken)
    with batching(GatedEngine()) as (batcher, _):
        with pytest.raises(EngineFailed, match=r"^the scheduler failed: ZeroDivisionError$"):
            await asyncio.wait_for(ask(batcher, "encode", 2), 20)
        assert batcher.failure == "the scheduler of the fake engine failed: ZeroDivisionError"
    assert "a worker of the fake engine ended" in caplog.text
