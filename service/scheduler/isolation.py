"""Isolation of texts that fail a batch: all other texts of the batch are answered.

A batch that fails is halved recursively. A text that an engine cannot compute therefore only delays
the other texts of its batch, and no text fails by an error that occurs once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from service.errors import EngineFailed, EngineOutOfMemory, ServiceError

MOST_RUNS = 16
"""Maximum runs of one batch: enough to find one failing text among 128. After the last run, all
remaining texts fail."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def isolate(
    batch: Sequence[Item],
    run: Callable[[Sequence[Item]], list[Result]],
    wanted: Callable[[Item], bool],
    shared: Callable[[Sequence[Item]], bool],
) -> Iterator[tuple[Sequence[Item], list[Result] | ServiceError]]:
    """Run a batch, halving it where it fails; yield each part with its outputs or its error.

    A batch that runs out of memory is halved once: a half that runs out of memory again fails.

    Args:
        batch: at least one item.
        run: function that computes items, with an output for each, or raises a `ServiceError`.
        wanted: whether a caller still waits for an item; called before the item is run again.
        shared: whether items belong to several callers; items of a single caller fail together.

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
