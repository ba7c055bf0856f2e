"""Clients send requests without pause, reconnect, and distinguish lost from refused ones."""

from __future__ import annotations

import asyncio

import pytest

from testing.client import Reply, request
from testing.clients import Clients
from testing.process import free_port
from tests.testing.servers import answering, streaming

pytestmark = pytest.mark.anyio
REQUESTS = [request("/a"), request("/b")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def judge(number: int, reply: Reply) -> str:
    return "right" if reply.body == b"/a/b"[2 * number : 2 * number + 2] else "wrong"


@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}])
async def test_each_reply_is_judged_by_its_request(headers: dict[str, str]) -> None:
    with answering(lambda path, _: (200, headers, path.encode())) as asked:
        clients = Clients(asked.port, REQUESTS, judge)
        async with clients.running(3):
            await clients.until("right", 20)
    assert set(clients.outcomes) == {"right"}
    assert clients.outcomes["right"] == len(asked.requests)


async def test_a_wrong_reply() -> None:
    with answering(lambda *_: (200, {}, b"/a")) as asked:
        clients = Clients(asked.port, REQUESTS, judge)
        async with clients.running(1):
            await clients.until("wrong", 2)
    assert clients.outcomes["right"] > 0


async def test_nobody_listens() -> None:
    clients = Clients(free_port(), REQUESTS, judge)
    async with clients.running(2):
        await clients.until("refused", 4)
    assert set(clients.outcomes) == {"refused"}


async def test_replies_that_never_come_are_lost() -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)

    async with streaming(leave) as port:
        clients = Clients(port, REQUESTS, judge, killed=0.0)
        async with clients.running(2):
            await clients.until("lost", 4)
    assert set(clients.outcomes) == {"lost"}
    assert clients.late == clients.outcomes["lost"]
