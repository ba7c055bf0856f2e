"""Property test: each request that is not cancelled gets its own result, once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from service.engines.contract import Output, Task
from service.engines.fake import FakeEngine
from service.errors import EngineFailed
from service.scheduler.lanes import LaneName
from service.scheduler.scheduler import Scheduler
from tests.service.harness import CONFIG, assert_same, batching, layer_maps, text, until

POISON = 13
LENGTHS = st.lists(st.sampled_from([1, 4, 5, 8, 30, 64, 90]), min_size=1, max_size=5)
ARRIVES = st.tuples(st.just("arrives"), st.sampled_from(["encode", "attention"]), LENGTHS)
RESUMES = st.tuples(st.just("resumes"), st.sampled_from(["encode", "attention"]), LENGTHS)
FAILS = st.tuples(st.just("arrives"), st.just("encode"), st.just([8, POISON, 8]))
LEAVES = st.tuples(st.just("leaves"), st.integers(0, 50))
WAIT = st.tuples(st.just("wait"), st.integers(0, 3))
EVENTS = st.lists(st.one_of(ARRIVES, ARRIVES, ARRIVES, RESUMES, LEAVES, WAIT, FAILS), max_size=40)


class SometimesFailing(FakeEngine):
    def run(self, tasks: Sequence[Task]) -> list[Output]:
        if any(task.tokens == POISON for task in tasks):
            raise ValueError
        return super().run(tasks)


async def play(events: list[Any], concurrency: int) -> None:
    engine = SometimesFailing(CONFIG, concurrency=concurrency)
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
    with batching(engine, max_batch_tokens=64) as (batcher, recorder):
        requests: list[tuple[asyncio.Task[Any], list[Task]]] = []
        for event in events:
            match event:
                case ("arrives" | "resumes" as how, lane, lengths):
                    make = text if how == "arrives" else layer_maps
                    tasks = [make(n, len(requests) * 10 + i) for i, n in enumerate(lengths)]
                    ask = batcher.submit if how == "arrives" else batcher.resume
                    requests.append((asyncio.create_task(ask(lane, tasks)), tasks))
                case ("leaves", index) if requests:
                    requests[index % len(requests)][0].cancel()
                case ("wait", steps):
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    await asyncio.sleep(0.0005 * steps)
        async with asyncio.timeout(60):
            await asyncio.gather(*(request for request, _ in requests), return_exceptions=True)
        answered = check(engine, requests)
        await at_rest(batcher)
        computed = sum(len(lengths) for _, lengths, _ in recorder.finished)
        submitted = sum(len(tasks) for _, tasks in requests)
        assert answered <= computed <= submitted - len(recorder.drops)
        await assert_takes_work(batcher)
    assert complaints == []  # no future was resolved twice, no task died


def check(engine: FakeEngine, requests: list[tuple[asyncio.Task[Any], list[Task]]]) -> int:
    """Check that every request that was not cancelled has its own results or an error."""
    answered = 0
    for request, tasks in requests:
        if request.cancelled():
            continue
        if error := request.exception():
            assert isinstance(error, EngineFailed)
            continue
        for task, done in zip(tasks, request.result(), strict=True):
            assert_same(done.value, engine.expected(task))
        answered += len(tasks)
    return answered


async def at_rest(batcher: Scheduler) -> None:
    """Wait until every worker is idle and every batch was reported."""
    await until(lambda: batcher._dispatcher._idle == batcher.engine.concurrency)
    await asyncio.sleep(0)


async def assert_takes_work(batcher: Scheduler) -> None:
    """Check that nothing waits, and that every lane accepts work again."""
    for lane in batcher.lanes.values():
        assert lane.queued_tokens == 0
        assert lane.queued_texts == 0
    lanes: list[LaneName] = ["encode", "attention"]
    for lane_name in lanes:
        assert len(await batcher.submit(lane_name, [text(5)])) == 1


@given(EVENTS, st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_each_live_waiter_gets_its_own_answer_once(events: list[Any], concurrency: int) -> None:
    asyncio.run(play(events, concurrency))
