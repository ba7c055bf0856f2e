"""Replies are parsed from any pieces, and incomplete replies raise an error."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from testing.client import Connection, Lost, Reply, ask, request
from tests.testing.servers import answering, streaming

pytestmark = pytest.mark.anyio

COUNTED = b"HTTP/1.1 429 Too Many\r\nContent-Length: 3\r\nRetry-After:  7\r\n\r\nabc"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\na\r\n\r\n7\r\n0\r\n\r\n89\r\n0\r\n\r\n"
)
BODIES = {COUNTED: b"abc", CHUNKED: b"a\r\n0\r\n\r\n89"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextlib.asynccontextmanager
async def sending(*pieces: bytes, end: bool = False) -> AsyncIterator[int]:
    """Run a server that answers any request with some pieces, one after another."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if end:
                break

    async with streaming(answer) as port:
        yield port


@pytest.mark.parametrize("reply", BODIES)
@pytest.mark.parametrize("size", [1, 2, 5, 1000])
async def test_a_reply_in_pieces(reply: bytes, size: int) -> None:
    pieces = [reply[i : i + size] for i in range(0, len(reply), size)]
    async with sending(*pieces) as port, await Connection.to(port) as connection:
        for _ in range(3):
            found = await connection.ask(request("/"))
            assert found.body == BODIES[reply]
        assert connection.surplus == 0


async def test_status_and_headers() -> None:
    async with sending(COUNTED) as port:
        found = await ask(port, "/")
    assert found.status == 429
    assert found.header("retry-after") == "7"
    assert found.header("after") is None
    assert found.headers == [("content-length", "3"), ("retry-after", "7")]
    assert found.head.startswith(b"HTTP/1.1 429 Too Many\r\n")
    assert not found.closes
    assert Reply(200, b"http/1.1 200\r\nconnection: close\r\n\r\n", b"").closes


async def test_bytes_that_nobody_asked_for() -> None:
    async with sending(COUNTED + b"more") as port, await Connection.to(port) as connection:
        await connection.ask(request("/"))
        assert connection.surplus == 4


@pytest.mark.parametrize(("piece", "begun"), [(b"", False), (b"HTT", True), (COUNTED[:-1], True)])
async def test_a_connection_that_ends_too_early(piece: bytes, begun: bool) -> None:
    async with sending(piece, end=True) as port, await Connection.to(port) as connection:
        with pytest.raises(Lost) as lost:
            await connection.ask(request("/"))
        assert lost.value.begun is begun
        with pytest.raises(Lost):
            await connection.ask(request("/"))


def test_a_request_is_whole() -> None:
    head, _, body = request("/encode", {"inputs": "naïve"}, {"x-a": "b"}).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /encode HTTP/1.1\r\n")
    assert head.endswith(b"\r\nx-a: b")
    assert f"content-length: {len(body)}".encode() in head
    assert json.loads(body) == {"inputs": "naïve"}
    assert request("/health/live").startswith(b"GET /health/live HTTP/1.1\r\n")


async def test_headers_by_name() -> None:
    with answering() as asked:
        await ask(asked.port, "/encode", {}, x_request_timeout_ms="50")
    ((path, headers, body),) = asked.requests
    assert (path, headers["x-request-timeout-ms"], body) == ("/encode", "50", b"{}")
