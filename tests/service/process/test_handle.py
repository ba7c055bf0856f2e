"""A worker as its supervisor sees it: what comes over the channel, and what can be handed over."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator

import pytest

from service.process.channel import CLOSED, CONNECTION, DRAIN, LOADED
from service.process.handle import WorkerHandle
from tests.service.harness import until

pytestmark = pytest.mark.anyio
WAITS = "import sys; sys.stdin.read(); sys.exit(3)"


@contextlib.asynccontextmanager
async def handled() -> AsyncIterator[tuple[WorkerHandle, socket.socket]]:
    """A handle, and the worker's end of its channel; the process ends with its input."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WAITS), stdin=asyncio.subprocess.PIPE
    )
    worker = WorkerHandle(7, process, ours)
    with theirs:
        yield worker, theirs
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()
    await until(lambda: worker.gone)


async def test_it_serves_from_when_it_is_loaded_until_it_is_gone() -> None:
    async with handled() as (worker, channel):
        assert not worker.serves
        channel.send(LOADED)
        await asyncio.wait_for(worker.settled.wait(), 10)
        assert worker.serves
        channel.close()
        await until(lambda: worker.gone)
        assert not worker.serves


async def test_connections_are_handed_over_and_counted_until_they_end() -> None:
    one, other = socket.socketpair()
    async with handled() as (worker, channel):
        with one, other:
            assert worker.give(one, number=5)
            assert (worker.connections, worker.last_number) == (1, 5)
            message, descriptors, *_ = socket.recv_fds(channel, 100, 1)
            assert message == CONNECTION
            with socket.socket(fileno=descriptors[0]) as given:
                given.send(b"here")
                assert other.recv(10) == b"here"
        worker.connections = 3
        channel.send(CLOSED + b"2")
        await until(lambda: worker.connections == 1)


async def test_a_full_channel_takes_no_connection() -> None:
    one, other = socket.socketpair()
    async with handled() as (worker, _):
        with one, other:
            given = 0
            while worker.give(one, number=given):
                given += 1
            assert worker.connections == given
            assert worker.last_number == given - 1


async def test_it_is_told_to_drain_and_that_nothing_more_comes() -> None:
    async with handled() as (worker, channel):
        worker.drain()
        worker.finish()
        assert channel.recv(100) == DRAIN
        assert channel.recv(100) == b""


async def test_its_end_has_its_own_reason_or_its_exit_code() -> None:
    async with handled() as (worker, channel):
        channel.send(b"the artifact is damaged")
        worker.kill()
        assert await worker.ended() == "the artifact is damaged"
    async with handled() as (worker, _):
        worker.kill()
        assert await worker.ended() == "worker 7 ended by signal 9"
    async with handled() as (worker, _):
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        assert await worker.ended() == "worker 7 ended with exit code 3"
