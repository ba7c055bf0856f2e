"""Runs of consecutive work that is computed together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def runs(
    items: Iterable[Item], sizes: Callable[[Item], Sequence[int]], most: Sequence[int]
) -> Iterator[list[Item]]:
    """Split items into runs, none of whose summed `sizes` exceeds `most`.

    A larger item is a run alone.
    """
    run: list[Item] = []
    totals: Sequence[int] = [0] * len(most)
    for item in items:
        own = sizes(item)
        totals = [total + size for total, size in zip(totals, own, strict=True)]
        if run and any(total > limit for total, limit in zip(totals, most, strict=True)):
            yield run
            run, totals = [], own
        run.append(item)
    if run:
        yield run
