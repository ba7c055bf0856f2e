"""Results of both towers come in the order of the request; an error of one cancels the other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.api.wire.towers import in_order, together

pytestmark = pytest.mark.anyio


def test_results_are_in_the_order_of_the_inputs() -> None:
    shares: Any = [(None, [1, 2]), (None, [0, 3])]
    assert in_order(shares, ["bc", "ad"]) == ["a", "b", "c", "d"]
    assert in_order(shares[:1], ["bc"]) == "bc"


async def test_towers_run_at_the_same_time() -> None:
    met = asyncio.Barrier(2)

    class Tower:
        async def encode(self) -> list[Any]:
            await met.wait()
            return [self]

    towers = [Tower(), Tower()]
    assert await together(towers) == [[tower] for tower in towers]


async def test_an_error_of_a_tower_cancels_the_other() -> None:
    cancelled = asyncio.Event()

    class Failing:
        async def encode(self) -> list[Any]:
            raise OSError

    class Endless:
        async def encode(self) -> list[Any]:
            try:
                return await asyncio.Event().wait()  # type: ignore[return-value]
            finally:
                cancelled.set()

    with pytest.raises(OSError):  # noqa: PT011 - any
        await together([Endless(), Failing()])
    assert cancelled.is_set()
