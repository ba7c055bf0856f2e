"""The order in which large replies are written: a piece of one, then a piece of the next.

To write numbers as JSON holds the interpreter's lock. In threads it therefore keeps the event loop
waiting, for longer the more threads write; so it is done on the event loop itself, a piece at a
time, and between two pieces everything else that is due goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

TURN_BYTES = 2**17
"""Bytes of a reply that are written in a turn, at least, unless it ends."""


class Turns:
    """The replies that are being written, which take turns in the order in which they ask."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def written(self, pieces: Iterator[bytes | memoryview]) -> AsyncGenerator[bytes]:
        """Write a reply, joined to parts of `TURN_BYTES` or a piece more.

        The first part waits for nothing: a small reply is written at once.

        Args:
            pieces: of the reply, each made when it is asked for, in a millisecond at most.

        """
        part = _turn(pieces)
        while len(part) >= TURN_BYTES:
            yield part
            async with self._turn:
                await asyncio.sleep(0)  # other callbacks of the event loop
                part = _turn(pieces)
        if part:
            yield part


def _turn(pieces: Iterator[bytes | memoryview]) -> bytes:
    taken: list[bytes | memoryview] = []
    size = 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= TURN_BYTES:
            break
    return b"".join(taken)
