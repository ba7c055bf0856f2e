"""Texts of an occlusion, of which few wait at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from service.engines.contract import Pooling, TextTask
from service.engines.fake import FakeEngine
from service.errors import EngineFailed
from service.inference.explanation import occlusion
from service.inference.explanation.occlusion import (
    Job,
    Occlusion,
    cosine,
    in_turn,
    occlude,
)
from service.inference.explanation.spans import Span
from service.inference.timings import Timings
from service.scheduler.submission import ANYBODY
from tests.service.harness import (
    CONFIG,
    AnsweringEngine,
    GatedEngine,
    batching,
    text,
    tokenized,
    until,
)

pytestmark = pytest.mark.anyio
OTHER = np.arange(1, 9, dtype=np.float32)


def occluded(
    length: int, first: int = 0, spans: Sequence[Span] = (), order: Sequence[int] | None = None
) -> Occlusion:
    text = replace(tokenized(length), prompt_tokens=first)
    spans = spans or [Span(0, 0, (token,)) for token in range(length)]
    order = range(len(spans)) if order is None else order
    pooling = Pooling(2, "mean", first)
    return Occlusion(text, spans, order, pooling, lambda vector: vector, OTHER)


def _jobs(occlusions: list[Occlusion]) -> Iterator[Job]:
    return (job for one in occlusions for job in one.jobs())


async def test_each_token_is_a_text_without_it() -> None:
    engine, several = FakeEngine(CONFIG), [occluded(5, first=2), occluded(3), occluded(1)]
    timings = Timings(9, 0.0, 0.0)
    with batching(engine) as (scheduler, _):
        await occlude(scheduler, ANYBODY, timings, _jobs(several))
    for one in several[:2]:
        for token, found in enumerate(one.without):
            first = one.pooling.first_token
            left_out = (token,) if token >= first else ()
            task = TextTask(
                one.text.input_ids,
                one.text.segment_ids,
                pooling=Pooling(2, "mean", first, left_out),
                unseen=(token,),
            )
            pooled = engine.expected(task).pooled
            assert pooled is not None
            assert found == pytest.approx(cosine(pooled, OTHER))
    assert several[2].without.tolist() == [0.0]  # no token is left to pool
    assert timings.inference_seconds > 0


async def test_a_span_is_left_out_as_a_whole_and_only_those_of_the_order_are() -> None:
    spans = [Span(0, 3, (1, 2)), Span(4, 5, (3,)), Span(6, 9, (0, 4)), Span(0, 9, (2, 3, 4))]
    one, engine = occluded(5, first=2, spans=spans, order=[2, 3, 0]), FakeEngine(CONFIG)
    tasks = [task for task, _ in one.jobs()]
    assert [task.unseen for task in tasks] == [(0, 4), (1, 2)]
    assert [task.pooling and task.pooling.left_out for task in tasks] == [(4,), (2,)]
    with batching(engine) as (scheduler, _):
        await occlude(scheduler, ANYBODY, Timings(5, 0.0, 0.0), one.jobs())
    for task, number in zip(tasks, (2, 0), strict=True):
        pooled = engine.expected(task).pooled
        assert pooled is not None
        assert one.without[number] == pytest.approx(cosine(pooled, OTHER))
    assert np.isnan(one.without[1])  # not in the order
    assert one.without[3] == 0.0  # no token is left to pool


def test_texts_take_turns() -> None:
    jobs = [[(text(n), id)] * n for n in (1, 3, 2)]
    assert [task.tokens for task, _ in in_turn(jobs)] == [1, 3, 2, 3, 2, 3]


async def test_little_of_it_waits_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(occlusion, "SLICE_TOKENS", 40)
    engine = GatedEngine()
    with batching(engine, max_batch_tokens=20) as (scheduler, _):
        several = [occluded(10) for _ in range(5)]
        occluding = occlude(scheduler, ANYBODY, Timings(0, 0.0, 0.0), _jobs(several))
        running = asyncio.create_task(occluding)
        await until(lambda: engine.batches)
        assert scheduler.lanes["attention"].queued_tokens <= 2 * 40
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert scheduler.lanes["attention"].queued_tokens == 0


async def test_a_failure_ends_it() -> None:
    def fail(_: object) -> None:
        raise EngineFailed("no")

    with (
        batching(AnsweringEngine(fail)) as (scheduler, _),
        pytest.raises(EngineFailed, match="no"),
    ):
        await occlude(scheduler, ANYBODY, Timings(0, 0.0, 0.0), occluded(4).jobs())


def test_the_cosine_of_nothing_is_0() -> None:
    assert cosine(OTHER, OTHER * 0) == 0
    assert math.isclose(cosine(OTHER, OTHER * 3), 1)
