"""Requests that a model answers, so that it is released after the last of them."""

from __future__ import annotations

import asyncio
import time


class Uses:
    """Number of requests that a model answers now, for use on the event loop."""

    def __init__(self) -> None:
        self.count = 0
        self.last_began = time.monotonic()
        """`time.monotonic()` when the last request began, or when the model was loaded."""
        self._ended = asyncio.Event()

    def begin(self) -> None:
        """Count a request; its end calls `end`."""
        self.count += 1
        self.last_began = time.monotonic()

    def end(self) -> None:
        """Stop counting a request."""
        self.count -= 1
        if not self.count:
            self._ended.set()

    async def drained(self) -> None:
        """Wait until no request is counted."""
        while self.count:
            self._ended.clear()
            await self._ended.wait()
