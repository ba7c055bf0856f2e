"""Requests of a test to a scheduler whose only worker is busy, and a clock that a test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from service.scheduler.call import ANYBODY, Call
from service.scheduler.lanes import LaneName, Pace
from service.scheduler.queue import Slot
from service.scheduler.scheduler import Scheduler
from tests.service.harness import GatedEngine, Recorder, batching, layer_maps, text, until

Request = asyncio.Task[list[Slot[Any]]]


def ask(batcher: Scheduler, lane: LaneName, *lengths: int, call: Call = ANYBODY) -> Request:
    """Send a request of texts."""
    return asyncio.create_task(batcher.submit(lane, [text(length) for length in lengths], call))


def resume(batcher: Scheduler, *lengths: int, call: Call = ANYBODY) -> Request:
    """Continue a request with maps in the lane of attention."""
    tasks = [layer_maps(length) for length in lengths]
    return asyncio.create_task(batcher.submit("attention", tasks, call, resumed=True))


@contextlib.asynccontextmanager
async def busy(
    engine: GatedEngine | None = None, **limits: Any
) -> AsyncIterator[tuple[Scheduler, GatedEngine, Recorder]]:
    """Yield a scheduler whose worker computes a text of one token until the engine is let through.

    It is let through at the end at the latest.
    """
    engine = engine or GatedEngine()
    with batching(engine, **limits) as (batcher, recorder):
        plug = ask(batcher, "encode", 1)
        await until(lambda: engine.batches)
        yield batcher, engine, recorder
        engine.let_through()
        await plug


class FakeClock:
    """`time.monotonic` of the scheduler and of measured batches, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (
            "service.engines.measuring",
            "service.scheduler.scheduler",
            "service.scheduler.lanes",
            "service.scheduler.outputs",
            "service.scheduler.queue",
        ):
            monkeypatch.setattr(f"{module}.time", self)

    def monotonic(self) -> float:
        return self.now


async def queued(batcher: Scheduler, tokens: int, lane: LaneName = "encode") -> None:
    """Wait until some tokens are queued."""
    await until(lambda: batcher.lanes[lane].queued_tokens == tokens)


def tenth_a_token(times: float = 1.0) -> Pace:
    """Return 0.1 seconds for each token, or some times as many."""
    pace = Pace(64)
    for tokens in (1, 64):
        pace.account(tokens, times * tokens / 10)
    return pace
