"""How many bytes of large replies, or of bodies, may be in memory at once, over all requests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from service.errors import Overloaded


class ByteBudget:
    """A reply is held from before it is computed until its last byte is written.

    A body is held from its first byte until its request is answered.
    """

    def __init__(self, limit: int, what: str = "replies") -> None:
        self.limit = limit
        self.held = 0
        self._what = what

    def take(self, size: int, own: int = 0) -> None:
        """Take `size` bytes for one who holds `own` already; one alone always may.

        Raises:
            Overloaded: others hold too many.

        """
        if self.held > own and self.held + size > self.limit:
            raise Overloaded(
                f"{self._what} in flight hold {self.held} of {self.limit} bytes",
                retry_after_seconds=1,
            )
        self.held += size

    def give_back(self, size: int) -> None:
        """Of what was taken."""
        self.held -= size

    @contextlib.contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Take `size` bytes for as long as the block runs.

        Raises:
            Overloaded: others hold too many.

        """
        self.take(size)
        try:
            yield
        finally:
            self.give_back(size)
