"""Turns on the event loop, in which large replies are serialised and large bodies are read.

Serialising to JSON holds the GIL, so that threads would block the event loop, for longer the more
threads serialise. Therefore replies are serialised on the event loop, one part a turn, and other
callbacks run between two turns. Bodies are read in the same turns, as the loop would otherwise read
a part of every connection's body before it does anything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

from service.exchange import Part

TURN_BYTES = 2**17
"""Minimum bytes of a reply that are serialised in a turn, except for its last part; and size from
which a body is read in turns."""


class Turns:
    """Round robin of large bodies and of replies that are being serialised."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def take(self) -> None:
        """Wait for a turn of the event loop in which no other large body or reply is served."""
        async with self._turn:
            await asyncio.sleep(0)

    async def written(self, pieces: Part | Iterator[Part]) -> AsyncGenerator[Part]:
        """Yield bytes as they are, and pieces in parts of at least `TURN_BYTES` but for the last.

        The first part does not wait for a turn, so that a small reply is written at once. Each
        piece is serialised within a millisecond when it is requested.
        """
        if isinstance(pieces, bytes | memoryview):
            yield pieces
            return
        part = part_of(pieces)
        while part:
            yield part
            if len(part) < TURN_BYTES:
                return
            async with self._turn:
                await asyncio.sleep(0)  # other callbacks of the event loop
                part = part_of(pieces)


def part_of(pieces: Iterator[Part]) -> bytes:
    """Return the next pieces joined to at least `TURN_BYTES`; fewer bytes if no more follow."""
    taken: list[Part] = []
    size = 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= TURN_BYTES:
            break
    return b"".join(taken)
