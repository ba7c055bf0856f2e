"""The order in which large bodies are read and large replies are written: one piece a turn.

Writing numbers as JSON holds the interpreter's lock. In threads it therefore keeps the event loop
waiting, for longer the more threads write; so it is done on the event loop itself, a piece at a
time, and everything else that is due runs between two pieces. Bodies are read in the same turns:
else all connections that send one would have their pieces read in one go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

TURN_BYTES = 2**17
"""Bytes of a reply that are written in a turn, at least, unless it ends; and size from which a body
is read in turns."""


class Turns:
    """Turns of large bodies and replies, in the order in which they ask for them."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def take(self) -> None:
        """Wait for a turn of the event loop in which no other large body or reply is served."""
        async with self._turn:
            await asyncio.sleep(0)

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
