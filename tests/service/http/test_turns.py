"""Large bodies are read and large replies are written in turns."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
from starlette.types import Message

from service.errors import RequestTimeout
from service.http.exchange import TURN_BYTES, Turns, read_body
from tests.service.harness import bare_service, exchange

pytestmark = pytest.mark.anyio
LARGE = bytes(TURN_BYTES)


class Loop:
    """Counts the turns of the event loop, and notes who writes in which."""

    def __init__(self) -> None:
        self.turn = 0
        self.written: list[tuple[str, int]] = []

    def pieces(self, name: str, count: int) -> Iterator[bytes]:
        for _ in range(count):
            self.written.append((name, self.turn))
            yield LARGE

    async def count(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


async def write(turns: Turns, pieces: Iterator[bytes]) -> int:
    return sum([len(part) async for part in turns.written(pieces)])


async def test_one_piece_is_written_in_a_turn_of_the_loop_however_many_replies() -> None:
    loop, turns = Loop(), Turns()
    counting = asyncio.create_task(loop.count())
    replies = [write(turns, loop.pieces(f"{n}", 10)) for n in range(16)]
    assert await asyncio.gather(*replies) == [10 * TURN_BYTES] * 16
    counting.cancel()
    later = loop.written[16:]
    assert len(later) == 16 * 9
    assert set(Counter(turn for _, turn in later).values()) == {1}


async def test_replies_take_turns_in_the_order_in_which_they_came() -> None:
    loop, turns = Loop(), Turns()
    await asyncio.gather(*(write(turns, loop.pieces(name, 4)) for name in "abc"))
    assert "".join(name for name, _ in loop.written) == "abc" * 4


@pytest.mark.parametrize("size", [0, 1, TURN_BYTES - 1])
async def test_a_small_reply_waits_for_nobody(size: int) -> None:
    turns = Turns()
    large = [asyncio.create_task(write(turns, itertools.repeat(LARGE, 100))) for _ in range(3)]
    await asyncio.sleep(0)
    small = write(turns, iter([bytes(size)]))
    with pytest.raises(StopIteration) as done:
        small.send(None)
    assert done.value.value == size
    await asyncio.gather(*large)


@pytest.mark.parametrize("after", range(6))
async def test_a_reply_whose_client_left_keeps_nobody(after: int) -> None:
    turns = Turns()
    leaving, staying = (
        asyncio.create_task(write(turns, itertools.repeat(LARGE, 10))) for _ in range(2)
    )
    for _ in range(after):
        await asyncio.sleep(0)
    leaving.cancel()
    async with asyncio.timeout(60):
        assert await staying == 10 * TURN_BYTES
    assert leaving.cancelled()


async def test_small_pieces_are_joined() -> None:
    pieces = [b"%d," % number for number in range(100_000)]
    parts = [part async for part in Turns().written(iter(pieces))]
    assert b"".join(parts) == b"".join(pieces)
    *full, _ = map(len, parts)
    assert full
    assert all(TURN_BYTES <= size < TURN_BYTES + 10 for size in full)


async def test_pieces_of_large_bodies_are_read_in_turns_and_small_ones_at_once() -> None:
    loop, turns = Loop(), Turns()
    counting = asyncio.create_task(loop.count())
    service = bare_service(turns, max_body_bytes_in_flight=2**30)

    async def read(name: str, size: int) -> int:
        pieces, left = loop.pieces(name, size), iter(range(size - 1, -1, -1))

        async def receive() -> Message:
            return {"type": "http.request", "body": next(pieces), "more_body": bool(next(left))}

        return len(await read_body(exchange(service=service), receive))

    sizes = await asyncio.gather(*(read(f"{n}", 10) for n in range(16)), read("small", 1))
    counting.cancel()
    assert sizes == [10 * TURN_BYTES] * 16 + [TURN_BYTES]
    assert loop.written[16][0] == "small"
    assert set(Counter(turn for _, turn in loop.written[17:]).values()) == {1}


class Slow(Turns):
    """Turns for each of which a body waits longer than its client may take."""

    async def take(self) -> None:
        await asyncio.sleep(0.6)


async def test_waiting_for_a_turn_is_not_the_clients_time() -> None:
    service = bare_service(Slow(), client_timeout_seconds=0.5)
    messages = iter([True, False])

    async def receive() -> Message:
        return {"type": "http.request", "body": LARGE, "more_body": next(messages)}

    found = exchange(service=service)
    assert len(await read_body(found, receive)) == 2 * TURN_BYTES

    async def silent() -> Message:
        if found.received_bytes:
            await asyncio.sleep(60)
        return {"type": "http.request", "body": LARGE, "more_body": True}

    found = exchange(service=service)
    with pytest.raises(RequestTimeout):
        await read_body(found, silent)
