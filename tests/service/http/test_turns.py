"""Large replies are written in turns, and whole replies at once."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.errors import RequestTimeout
from service.http.connection import WholeReplySend
from service.http.exchange import Bodies
from service.http.turns import TURN_BYTES, Turns
from service.system.budget import ByteBudget
from tests.service.harness import exchange

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
    service = SimpleNamespace(turns=turns)
    bodies = Bodies(2**30, 60, ByteBudget(2**30))

    async def read(name: str, size: int) -> int:
        pieces, left = loop.pieces(name, size), iter(range(size - 1, -1, -1))

        async def receive() -> Message:
            return {"type": "http.request", "body": next(pieces), "more_body": bool(next(left))}

        return len(await bodies.read(exchange(service=service), receive))

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
    service = SimpleNamespace(turns=Slow())
    messages = iter([True, False])

    async def receive() -> Message:
        return {"type": "http.request", "body": LARGE, "more_body": next(messages)}

    bodies, found = Bodies(2**30, 0.5, ByteBudget(2**30)), exchange(service=service)
    assert len(await bodies.read(found, receive)) == 2 * TURN_BYTES

    async def silent() -> Message:
        if found.received_bytes:
            await asyncio.sleep(60)
        return {"type": "http.request", "body": LARGE, "more_body": True}

    found = exchange(service=service)
    with pytest.raises(RequestTimeout):
        await bodies.read(found, silent)


BODY = b'{"results":[]}'
SIZED = (b"content-length", b"%d" % len(BODY))
HEADERS = [(b"content-type", b"application/json"), SIZED, (b"x-request-id", b"a")]


class Recorder:
    """Transport that records what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        raise AssertionError("the connection is kept")

    pause_reading = resume_reading = close


class Asked:
    """A request and its connection, of which nothing is answered yet."""

    def __init__(
        self,
        method: str = "POST",
        *,
        keep_alive: bool = True,
        default: tuple[bytes, bytes] = (b"date", b"today"),
    ) -> None:
        self.transport: Any = Recorder()
        self.flow = FlowControl(self.transport)
        self.completed = 0
        log = logging.getLogger("unused")
        self.cycle = RequestResponseCycle(
            scope={"type": "http", "http_version": "1.1", "method": method},  # type: ignore[typeddict-item]
            transport=self.transport,
            flow=self.flow,
            logger=log,
            access_logger=log,
            access_log=False,
            default_headers=[default],
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=keep_alive,
            on_response=self.complete,
        )
        self.send = WholeReplySend(self.cycle, self.transport)

    def complete(self) -> None:
        self.completed += 1

    async def send_in_parts(self) -> None:
        await self.send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await self.send({"type": "http.response.body", "body": BODY})


HEAD = b"".join(b"%b: %b\r\n" % header for header in HEADERS)


async def test_a_whole_reply_is_one_write_of_the_same_bytes() -> None:
    whole, parts = Asked(), Asked()
    await parts.send_in_parts()
    assert whole.send.whole(200, HEAD, BODY)
    assert whole.transport.written == [b"".join(parts.transport.written)]
    assert whole.completed == parts.completed == 1
    assert whole.cycle.response_complete
    assert whole.cycle.message_event.is_set()


@pytest.mark.parametrize(
    ("asked", "head"),
    [
        (Asked("HEAD"), HEAD),
        (Asked(keep_alive=False), HEAD),
        (Asked(), HEAD + b"connection: close\r\n"),
        (Asked(default=(b"connection", b"close")), HEAD),
    ],
    ids=["HEAD", "closes", "close", "drains"],
)
def test_what_needs_more_than_a_write_is_left_to_uvicorn(asked: Asked, head: bytes) -> None:
    assert not asked.send.whole(200, head, BODY)
    assert asked.transport.written == []
    assert not asked.cycle.response_started


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb"])
async def test_no_header_begins_another(value: bytes) -> None:
    asked = Asked()
    found = exchange(send=asked.send)
    for reply in (found.reply(200, [(b"x-model", value)], BODY), found.start(200, [(b"a", value)])):
        with pytest.raises(ValueError, match="line end"):
            await reply
    assert asked.transport.written == []
    assert found.status == 0


def test_a_client_that_does_not_read_is_left_to_uvicorn() -> None:
    asked = Asked()
    asked.flow.pause_writing()
    assert not asked.send.whole(200, HEAD, BODY)
    assert asked.transport.written == []


def test_a_reply_to_a_client_that_has_left_is_dropped() -> None:
    asked = Asked()
    asked.cycle.disconnected = True
    assert asked.send.whole(200, HEAD, BODY)
    assert asked.transport.written == []
    assert asked.completed == 0
