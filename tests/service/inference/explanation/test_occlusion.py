"""Which texts an occlusion is made of, and that little of it waits at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
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
    occlude,
    occlusion_tokens,
)
from service.inference.timings import Timings
from service.scheduler.submission import ANYBODY
from tests.service.harness import CONFIG, AnsweringEngine, GatedEngine, batching, tokenized, until

pytestmark = pytest.mark.anyio
OTHER = np.arange(1, 9, dtype=np.float32)


def occluded(length: int, first: int = 0) -> Occlusion:
    text = replace(tokenized(length), prompt_tokens=first)
    pooling = Pooling(2, "mean", first)
    return Occlusion(text, pooling, lambda vector: vector, OTHER, np.zeros(length))


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
            left_out = token if token >= first else None
            task = TextTask(
                one.text.input_ids,
                one.text.segment_ids,
                pooling=Pooling(2, "mean", first, left_out),
                unseen=(token,),
            )
            pooled = engine.expected(task).pooled
            assert pooled is not None
            assert found == pytest.approx(cosine(pooled, OTHER))
    assert several[2].without.tolist() == [0.0]  # nothing is left to pool
    assert timings.inference_seconds > 0
    assert occlusion_tokens(5) == sum(task.tokens for task, _ in occluded(5).jobs())


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
