"""Time of an explanation."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from service.inference.explanation.deadline import run_until, writing_seconds

pytestmark = pytest.mark.anyio


def test_time_to_write() -> None:
    assert writing_seconds(4.0, 0) == pytest.approx(0.4)
    assert writing_seconds(100.0, 100_000_000) == pytest.approx(1.0 + 2.0)


async def test_what_is_unfinished_is_cancelled_and_errors_are_raised() -> None:
    ended: list[str] = []

    async def work(name: str, *, waits: bool = False) -> None:
        try:
            if waits:
                await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def fail() -> None:
        raise ValueError("it failed")

    await run_until(time.monotonic() + 0.01, [work("short"), work("long", waits=True)])
    assert ended == ["short", "long"]
    with pytest.raises(ValueError, match="it failed"):
        await run_until(math.inf, [work("long", waits=True), fail()])
