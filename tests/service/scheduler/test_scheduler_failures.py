"""Failed batches, texts that may not wait, and results that come too late."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from service.engines.contract import Output, Pooling, Task
from service.errors import (
    DeadlinePassed,
    EngineFailed,
    EngineTimeout,
    EngineUnavailable,
    ServiceError,
)
from service.scheduler.call import Call
from tests.service.harness import (
    CONFIG,
    AnsweringEngine,
    GatedEngine,
    assert_same,
    batching,
    layer_maps,
    text,
    until,
)
from tests.service.scheduler.clock import FakeClock

pytestmark = pytest.mark.anyio


POISON = 13
"""Length of the text over which an engine fails."""
EVERYTHING: dict[str, Any] = {
    "hidden_layers": (0, 2),
    "pooling": Pooling(2, "mean"),
    "ablated": ((1, 0),),
}
SECRET = "the text of a user"


class Peculiar(BaseException):
    """Error that is not an `Exception`."""


def raising(error: BaseException) -> Callable[[Sequence[Task]], None]:
    def answer(tasks: Sequence[Task]) -> None:
        if any(task.tokens == POISON for task in tasks):
            raise error

    return answer


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(SECRET),
        KeyError(SECRET),
        StopIteration(SECRET),
        asyncio.CancelledError(SECRET),
        concurrent.futures.CancelledError(SECRET),
        Peculiar(SECRET),
        SystemExit(SECRET),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_foreign_exception_is_named_without_its_message(error: BaseException) -> None:
    with batching(AnsweringEngine(raising(error))) as (batcher, recorder):
        async with asyncio.timeout(60):
            with pytest.raises(EngineFailed) as failed:
                await batcher.submit("encode", [text(POISON)])
        assert failed.value.detail == f"the engine raised {type(error).__name__}"
        assert recorder.failed == ["encode"]
        assert len(await batcher.submit("encode", [text(8)])) == 1
        assert recorder.failed == ["encode"]


@pytest.mark.parametrize(
    "error", [EngineUnavailable("down", retry_after_seconds=7), EngineTimeout("late")]
)
async def test_the_engines_own_errors_arrive_as_they_are(error: ServiceError) -> None:
    with batching(AnsweringEngine(raising(error))) as (batcher, _):
        with pytest.raises(type(error)) as failed:
            await batcher.submit("encode", [text(POISON)])
        assert failed.value.detail == error.detail
        assert failed.value.retry_after_seconds == error.retry_after_seconds


async def test_a_failed_batch_fails_those_whose_text_it_is() -> None:
    class Failing(GatedEngine):
        def run(self, tasks: Sequence[Task]) -> list[Output]:
            outputs = super().run(tasks)
            raising(RuntimeError(SECRET))(tasks)
            return outputs

    engine = Failing()
    with batching(engine, max_batch_tokens=64) as (batcher, recorder):
        plug = asyncio.create_task(batcher.submit("encode", [text(1)]))
        await until(lambda: engine.batches)
        doomed = [
            asyncio.create_task(batcher.submit("encode", [text(POISON)])),
            asyncio.create_task(batcher.submit("encode", [text(POISON - 1)])),
            asyncio.create_task(batcher.submit("encode", [text(POISON), *[text(63)] * 5])),
        ]
        lucky = asyncio.create_task(batcher.submit("encode", [text(60)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens > 400)
        engine.let_through()
        async with asyncio.timeout(60):
            errors = await asyncio.gather(*doomed, return_exceptions=True)
        assert [type(error) for error in errors] == [EngineFailed, list, EngineFailed]
        assert errors[0] is not errors[2]  # each has a traceback of its own
        assert len(await plug) == 1
        assert_same((await lucky)[0].value, engine.expected(text(60)))
        assert batcher.lanes["encode"].queued_tokens == 0
        assert recorder.failed == ["encode"] * 2
        assert recorder.drops == ["encode"] * 5
    # the failed batch in halves, down to the texts that fail; what is left of their request is not
    assert engine.batches == [[1], [13, 13, 12], [13], [13, 12], [13], [12], [60]]


async def test_each_request_of_a_failed_batch_has_an_error_of_its_own() -> None:
    class Down(GatedEngine):
        def run(self, tasks: Sequence[Task]) -> list[Output]:
            if super().run(tasks) and len(tasks) > 1:
                raise EngineUnavailable("down", retry_after_seconds=7)
            return super().run(tasks)

    engine = Down()
    with batching(engine) as (batcher, _):
        plug = asyncio.create_task(batcher.submit("encode", [text(1)]))
        both = [asyncio.create_task(batcher.submit("encode", [text(8)])) for _ in range(2)]
        await until(lambda: batcher.lanes["encode"].queued_texts == 2)
        engine.let_through()
        await plug
        first, second = await asyncio.gather(*both, return_exceptions=True)
        assert isinstance(first, EngineUnavailable)
        assert isinstance(second, EngineUnavailable)
        assert first is not second  # each has a traceback of its own


async def test_the_rest_of_a_failed_request_is_not_computed_even_if_the_loop_is_late() -> None:
    engine = AnsweringEngine(raising(ValueError(SECRET)))
    with batching(engine, max_batch_tokens=64) as (batcher, recorder):
        tasks = [text(POISON), *[text(63)] * 5]
        failing = asyncio.create_task(batcher.submit("encode", tasks))
        await asyncio.sleep(0)
        while not batcher._dispatcher.idle:
            time.sleep(0.001)  # the event loop stands still, the worker does not
        with pytest.raises(EngineFailed):
            await failing
        assert engine.batches == 1
        assert recorder.drops == ["encode"] * 5


async def test_one_failure_in_three_for_many_rounds() -> None:
    engine = AnsweringEngine(raising(ValueError(SECRET)))
    failures = 0
    with batching(engine, max_batch_tokens=64) as (batcher, recorder):
        for round_ in range(300):
            length = POISON if round_ % 3 == 0 else 20
            try:
                (done,) = await batcher.submit("attention", [text(length, round_)])
            except EngineFailed:
                failures += 1
            else:
                assert_same(done.value, engine.expected(text(length, round_)))
    assert failures == 100
    assert recorder.failed == ["attention"] * 100


def changed(change: Callable[[Output], None]) -> Callable[[Sequence[Task]], list[Output]]:
    """Return the right results, with a change in the last one."""
    honest = AnsweringEngine(lambda _: None)

    def answer(tasks: Sequence[Task]) -> list[Output]:
        outputs = [honest.expected(task) for task in tasks]
        change(outputs[-1])
        return outputs

    return answer


def poisoned(name: str, value: float) -> Callable[[Output], None]:
    def change(output: Output) -> None:
        array = output.hidden[1] if name == "hidden" else getattr(output, name)
        array.flat[-1] = value

    return change


def reshaped(name: str, shape: tuple[int, ...]) -> Callable[[Output], None]:
    def change(output: Output) -> None:
        array = np.zeros(shape, np.float32)
        if name == "hidden":
            output.hidden[1] = array
        else:
            setattr(output, name, array)

    return change


H = CONFIG.hidden_size
WRONG: dict[str, Callable[[Sequence[Task]], Any]] = {
    "no outputs": lambda _: [],
    "one output too few": lambda tasks: changed(lambda _: None)(tasks)[:-1],
    "one output too many": lambda tasks: [*changed(lambda _: None)(tasks), Output([])],
    "no list": lambda _: 7,
    "no output": lambda tasks: [None] * len(tasks),
    "one hidden state too few": changed(lambda output: output.hidden.pop()),
    "one hidden state too many": changed(lambda output: output.hidden.append(output.hidden[0])),
    "no pooled vector": changed(lambda output: setattr(output, "pooled", None)),
    "hidden: a token less": changed(reshaped("hidden", (6, H))),
    "hidden: no features": changed(reshaped("hidden", (7,))),
    "hidden: one axis more": changed(reshaped("hidden", (7, H, 1))),
    "hidden: another size": changed(reshaped("hidden", (7, H - 1))),
    "pooled: a matrix": changed(reshaped("pooled", (7, H))),
    "pooled: a number": changed(reshaped("pooled", ())),
    "pooled: another size": changed(reshaped("pooled", (H + 1,))),
} | {
    f"{name}: {value}": changed(poisoned(name, value))
    for name in ("hidden", "pooled")
    for value in (np.nan, np.inf, -np.inf)
}
WRONG_MAPS: dict[str, Callable[[Sequence[Task]], Any]] = {
    "no outputs": lambda _: [],
    "no output": lambda tasks: [None] * len(tasks),
    "no maps": changed(lambda output: setattr(output, "maps", None)),
    "another task's output": lambda tasks: changed(lambda _: None)([tasks[0], *tasks[:-1]]),
    "padded": changed(reshaped("maps", (2, 8, 8))),
    "a head more": changed(reshaped("maps", (3, 7, 7))),
    "a head less": changed(reshaped("maps", (1, 7, 7))),
    "a key less": changed(reshaped("maps", (2, 7, 6))),
    "one axis more": changed(reshaped("maps", (1, 2, 7, 7))),
    "one axis less": changed(reshaped("maps", (7, 7))),
} | {str(value): changed(poisoned("maps", value)) for value in (np.nan, np.inf, -np.inf)}
EITHER = [(WRONG[what], False) for what in WRONG] + [
    (WRONG_MAPS[what], True) for what in WRONG_MAPS
]


@pytest.mark.parametrize(
    ("answer", "maps"), EITHER, ids=[*WRONG, *(f"maps: {what}" for what in WRONG_MAPS)]
)
async def test_an_answer_that_cannot_be_right_reaches_nobody(
    answer: Callable[[Sequence[Task]], Any], maps: bool
) -> None:
    engine = AnsweringEngine(answer)
    tasks: list[Task] = [text(7, 1, **EVERYTHING), layer_maps(7, 2, heads=(1, 0))]
    with batching(engine) as (batcher, recorder):
        async with asyncio.timeout(60):
            with pytest.raises(EngineFailed):
                await batcher.submit("encode", tasks if maps else tasks[::-1])
        assert recorder.failed == ["encode"]
        assert not recorder.finished
        assert batcher.last_success < 0
        engine.answer = lambda _: None
        for task, done in zip(tasks, await batcher.submit("encode", tasks), strict=True):
            assert_same(done.value, engine.expected(task))
    assert engine.batches == 2


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
        await until(lambda: batcher._dispatcher.idle)
        assert len(await batcher.submit("encode", [text(10)])) == 1
    assert engine.batches == [[1], [10]]


async def test_each_request_has_its_own_deadline(clock: FakeClock) -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, _):
        plug = asyncio.create_task(batcher.submit("encode", [text(1)]))
        await until(lambda: engine.batches)
        due = [clock.now + seconds * SOON for seconds in (3, 1, 2)]
        late = [
            asyncio.create_task(batcher.submit("encode", [text(8)], Call(finish_by=by)))
            for by in due
        ]
        await until(lambda: batcher.lanes["encode"].queued_texts == 3)
        for place in (1, 2, 0):
            clock.now = due[place]
            with pytest.raises(DeadlinePassed):
                await asyncio.wait_for(late[place], 20)
            assert sum(task.done() for task in late) == 1 + (1, 2, 0).index(place)
        engine.let_through()
        await plug


async def test_a_worker_skips_what_is_overdue_even_if_the_loop_is_late(clock: FakeClock) -> None:
    engine = GatedEngine()
    with batching(engine, queue_seconds=SOON) as (batcher, _):
        plug = asyncio.create_task(batcher.submit("encode", [text(1)]))
        await until(lambda: engine.batches)
        late = asyncio.create_task(batcher.submit("encode", [text(8)]))
        await until(lambda: batcher.lanes["encode"].queued_tokens)
        clock.now += SOON
        engine.let_through()
        while not batcher._dispatcher.idle:
            time.sleep(0.001)  # the event loop stands still, the worker does not
        with pytest.raises(DeadlinePassed):
            await late
        await plug
    assert engine.batches == [[1]]


async def test_a_deadline_during_the_computation_is_a_timeout(clock: FakeClock) -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, recorder):
        running = asyncio.create_task(
            batcher.submit("encode", [text(8)], Call(finish_by=clock.now + SOON))
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
            "attention", [layer_maps(8)], call=Call(finish_by=clock.now + SOON)
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
            await batcher.submit("encode", [text(8)], Call(finish_by=clock.now - 1))
        assert recorder.refusals == [("encode", "deadline")]
    assert engine.batches == []


async def test_a_batch_that_hangs_fails_its_requests_alone(clock: FakeClock) -> None:
    engine = GatedEngine()
    with batching(engine, batch_seconds=10.0) as (batcher, _):
        hangs = asyncio.create_task(batcher.submit("encode", [text(8)]))
        waits = asyncio.create_task(batcher.submit("encode", [text(9)]))
        await until(lambda: engine.batches)
        clock.now += 9.0
        batcher.fail_overdue()
        assert not batcher.failure
        clock.now += 2.0
        assert batcher.failure == "the fake engine hangs: a batch takes more than 10 s"
        batcher.fail_overdue()
        with pytest.raises(EngineTimeout, match="a batch takes more than 10 s"):
            await hangs
        assert not waits.done()
        began = time.monotonic()
        assert not await asyncio.to_thread(batcher.close)
        assert time.monotonic() - began < 1, "closing does not wait for a batch that hangs"
        with pytest.raises(EngineUnavailable, match="stopping"):
            await waits
