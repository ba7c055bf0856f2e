"""Requests that a model answers."""

from __future__ import annotations

import asyncio

import pytest

from service.models.served import Uses

pytestmark = pytest.mark.anyio


async def test_it_is_drained_after_the_last_request() -> None:
    uses = Uses()
    await uses.drained()
    uses.begin()
    uses.begin()
    waiting = asyncio.create_task(uses.drained())
    uses.end()
    await asyncio.sleep(0)
    assert not waiting.done()
    uses.end()
    uses.begin()  # a request that had the model before it was taken away
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    uses.end()
    await waiting
