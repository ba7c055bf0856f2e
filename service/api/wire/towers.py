"""Inputs of a request for both towers of a model, computed at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeVar

from service.inference.encoding import TextEncoding
from service.models.served import ServedModel

Item = TypeVar("Item")
Shares = Sequence[tuple[ServedModel, Sequence[int]]]
"""Towers that encode inputs of a request, each with the indices of its inputs."""


def in_order(towers: Shares, of_towers: Sequence[Sequence[Item]]) -> Sequence[Item]:
    """Return the items of all towers' inputs, in the order of the request's inputs."""
    if len(towers) == 1:
        return of_towers[0]
    places = [index for _, indices in towers for index in indices]
    items = [item for own in of_towers for item in own]
    return [item for _, item in sorted(zip(places, items, strict=True), key=lambda pair: pair[0])]


class Run(Protocol):
    """Inputs of a request that one tower computes."""

    async def encode(self) -> Sequence[TextEncoding]:
        """Return the arrays of each input."""


async def together(runs: Sequence[Run]) -> list[Sequence[TextEncoding]]:
    """Return the arrays of towers that compute at the same time; an error cancels the others."""
    tasks = [asyncio.create_task(run.encode()) for run in runs]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
