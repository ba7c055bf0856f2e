"""Isolation of texts that fail a batch: all other texts of the batch are answered.

A batch that fails is halved recursively. A text that an engine cannot compute therefore only delays
the other texts of its batch, and no text fails by an error that occurs once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from service.errors import EngineFailed, EngineOutOfMemory, ServiceError

MOST_RUNS = 16
"""Maximum runs of one batch: enough to find one failing text among 128. After the last run, all
remaining texts fail."""

Item = TypeVar("Item")


class Isolation(Generic[Item]):
    """Parts of a batch in the order in which they are run: first the whole batch.

    A batch that runs out of memory is halved once: a half that runs out of memory again fails.
    """

    def __init__(
        self,
        batch: Sequence[Item],
        wanted: Callable[[Item], bool],
        shared: Callable[[Sequence[Item]], bool],
    ) -> None:
        """Start with the whole batch.

        Args:
            batch: at least one item.
            wanted: whether a caller still waits for an item; called before the item is run again.
            shared: whether items belong to several callers; items of one caller fail together.

        """
        self._pending: list[Sequence[Item]] = [batch]
        self._wanted, self._shared = wanted, shared
        self._runs = 0

    def parts(self) -> Iterator[Sequence[Item]]:
        """Yield the parts to run; `halve` adds two."""
        while self._pending:
            part = self._pending.pop()
            if self._runs:
                part = [item for item in part if self._wanted(item)]
            if part:
                self._runs += 1
                yield part

    def halve(self, part: Sequence[Item], error: ServiceError) -> bool:
        """Return whether a failed part is to be run again in halves, which are then the next parts.

        Args:
            part: part that was run last.
            error: its error.

        """
        first_run = self._runs == 1
        again = isinstance(error, EngineFailed) and self._runs < MOST_RUNS and self._shared(part)
        again = again or (isinstance(error, EngineOutOfMemory) and first_run)
        if len(part) == 1 or not again:
            return False
        middle = len(part) // 2
        self._pending += [part[middle:], part[:middle]]
        return True
