"""Isolation of the text that breaks a batch: the right texts of a failed batch are answered.

A batch that fails is halved, and its halves again, so that one text that an engine cannot compute
costs its neighbours time and nothing else. An error that does not come again costs nobody anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from service.errors import EngineFailed, EngineOutOfMemory, ServiceError

MOST_RUNS = 16
"""Runs of one batch at most: enough to find one bad text among 128. Where every text fails, the
rest fails with them."""

Item = TypeVar("Item")


def isolate(
    batch: Sequence[Item],
    run: Callable[[Sequence[Item]], list[Any]],
    wanted: Callable[[Item], bool],
    shared: Callable[[Sequence[Item]], bool],
) -> Iterator[tuple[Sequence[Item], list[Any] | ServiceError]]:
    """Run a batch, in halves where it fails; gives each part with its outputs or its error.

    One that ran out of memory is halved once: the half of it that does so again has failed.

    Args:
        batch: at least one item.
        run: computes some items, one output each, or raises a `ServiceError`.
        wanted: whether somebody still waits for an item; asked before it is run again.
        shared: whether several callers wait for some items; what one alone waits for fails whole.

    """
    pending: list[tuple[Sequence[Item], bool]] = [(batch, False)]
    runs = 0
    while pending:
        part, halved = pending.pop()
        if runs:
            part = [item for item in part if wanted(item)]
            if not part:
                continue
        runs += 1
        try:
            outputs = run(part)
        except ServiceError as error:
            again = isinstance(error, EngineFailed) and runs < MOST_RUNS and shared(part)
            again = again or (isinstance(error, EngineOutOfMemory) and not halved)
            if len(part) == 1 or not again:
                yield part, error
            else:
                middle = len(part) // 2
                pending += [(part[middle:], True), (part[:middle], True)]
        else:
            yield part, outputs
