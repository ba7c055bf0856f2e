"""How many bytes of large replies may be in memory at once, over all requests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from service.errors import Overloaded


class ByteBudget:
    """Held from before a reply is computed until its last byte is written."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    @contextlib.contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Take `size` bytes for as long as the block runs; one reply alone always may.

        Raises:
            Overloaded: other replies hold too many.

        """
        if self.held and self.held + size > self.limit:
            raise Overloaded(
                f"replies in flight hold {self.held} of {self.limit} bytes", retry_after_seconds=1
            )
        self.held += size
        try:
            yield
        finally:
            self.held -= size
