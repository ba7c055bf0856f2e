"""A limit on the bytes that all bodies, or all replies, in flight hold in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from service.errors import Overloaded


class ByteBudget:
    """Bytes in flight over all requests, and the most that there may be.

    A reply holds its share from before it is computed until its last byte is written; a body from
    its first byte until its request is answered.
    """

    def __init__(self, limit: int, what: str = "replies") -> None:
        self.limit = limit
        self.held = 0
        self._what = what

    def take(self, size: int, own: int = 0) -> None:
        """Take `size` bytes for a holder of `own` bytes; a holder that is alone always may.

        Raises:
            Overloaded: the other holders leave too little.

        """
        if self.held > own and self.held + size > self.limit:
            raise Overloaded(
                f"{self._what} in flight hold {self.held} of {self.limit} bytes",
                retry_after_seconds=1,
            )
        self.held += size

    def give_back(self, size: int) -> None:
        """Return bytes that were taken."""
        self.held -= size

    @contextlib.contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Hold `size` bytes for as long as the block runs.

        Raises:
            Overloaded: the other holders leave too little.

        """
        self.take(size)
        try:
            yield
        finally:
            self.give_back(size)
