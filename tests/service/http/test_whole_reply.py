"""A whole reply has the bytes that uvicorn sends in parts, or is left to uvicorn."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.http.connection import WholeReplySend

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

    def __init__(self, method: str = "POST", *, keep_alive: bool = True) -> None:
        self.transport: Any = Recorder()
        self.flow = FlowControl(self.transport)
        self.completed = 0
        log = logging.getLogger("unused")
        self.cycle = RequestResponseCycle(
            scope={"type": "http", "method": method},  # type: ignore[typeddict-item]
            transport=self.transport,
            flow=self.flow,
            logger=log,
            access_logger=log,
            access_log=False,
            default_headers=[(b"date", b"today")],
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


@pytest.mark.anyio
async def test_a_whole_reply_is_one_write_of_the_same_bytes() -> None:
    whole, parts = Asked(), Asked()
    await parts.send_in_parts()
    assert whole.send.whole(200, HEADERS, BODY)
    assert whole.transport.written == [b"".join(parts.transport.written)]
    assert whole.completed == parts.completed == 1
    assert whole.cycle.response_complete
    assert whole.cycle.message_event.is_set()


@pytest.mark.parametrize(
    ("asked", "headers"),
    [
        (Asked("HEAD"), HEADERS),
        (Asked(keep_alive=False), HEADERS),
        (Asked(), [*HEADERS, (b"connection", b"close")]),
        (Asked(), HEADERS[:1]),
        (Asked(), [*HEADERS[:1], (b"content-length", b"15")]),
        (Asked(), [*HEADERS, (b"x-model", b"a\r\nset-cookie: b")]),
        (Asked(), [*HEADERS, (b"x-model", b"a\nb")]),
        (Asked(), [*HEADERS, (b"x-model", b"a\rb")]),
    ],
    ids=["HEAD", "closes", "close", "no length", "length", "header", "line feed", "return"],
)
def test_what_needs_more_than_a_write_is_left_to_uvicorn(
    asked: Asked, headers: list[tuple[bytes, bytes]]
) -> None:
    assert not asked.send.whole(200, headers, BODY)
    assert asked.transport.written == []
    assert not asked.cycle.response_started


def test_a_client_that_does_not_read_is_left_to_uvicorn() -> None:
    asked = Asked()
    asked.flow.pause_writing()
    assert not asked.send.whole(200, HEADERS, BODY)
    assert asked.transport.written == []


def test_a_reply_to_a_client_that_has_left_is_dropped() -> None:
    asked = Asked()
    asked.cycle.disconnected = True
    assert asked.send.whole(200, HEADERS, BODY)
    assert asked.transport.written == []
    assert asked.completed == 0
