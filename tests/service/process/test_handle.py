"""Worker from the supervisor's side: messages of the channel, and connections handed over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator

import psutil
import pytest

from service.process import supervisor
from service.process.channel import Message
from service.process.supervisor import MISSED_BEATS, WorkerHandle
from tests.service.harness import until

pytestmark = pytest.mark.anyio
WAITS = "import sys; sys.stdin.read(); sys.exit(3)"


@contextlib.asynccontextmanager
async def handled() -> AsyncIterator[tuple[WorkerHandle, socket.socket]]:
    """Yield a handle and the worker's end of its channel; the process ends with its input."""
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
        channel.send(Message.LOADED)
        await asyncio.wait_for(worker.settled.wait(), 60)
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
            assert message == Message.CONNECTION
            with socket.socket(fileno=descriptors[0]) as given:
                given.send(b"here")
                assert other.recv(10) == b"here"
        worker.connections = 3
        channel.send(Message.CLOSED + b"2")
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


async def test_it_is_told_to_drain_and_to_finish_and_still_takes_scrapes() -> None:
    one, other = socket.socketpair()
    async with handled() as (worker, channel):
        worker.drain()
        worker.finish()
        with one, other:
            assert worker.give(one, number=1)
        assert channel.recv(100) == Message.DRAIN
        assert channel.recv(100) == Message.FINISH
        assert channel.recv(100) == Message.CONNECTION


async def test_a_full_channel_tells_by_its_end_to_finish() -> None:
    one, other = socket.socketpair()
    async with handled() as (worker, channel):
        with one, other:
            while worker.give(one, number=1):
                pass
        worker.finish()
        while message := channel.recv(100):
            assert message == Message.CONNECTION


async def test_its_end_has_its_own_reason_or_its_exit_code() -> None:
    async with handled() as (worker, channel):
        channel.send(b"the artifact is damaged")
        worker.kill()
        assert await worker.ended() == "the artifact is damaged"
    async with handled() as (worker, _):
        worker.kill()
        assert await worker.ended() == "worker 7 ended by signal 9 (Killed)"
    async with handled() as (worker, _):
        worker.process.send_signal(signal.SIGBUS)
        assert await worker.ended() == (
            "worker 7 ended by signal 7 (Bus error: a file in use, as of a served artifact, was "
            "truncated or overwritten in place)"
        )
    async with handled() as (worker, _):
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        assert await worker.ended() == "worker 7 ended with exit code 3"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BEAT_SECONDS", 0.01)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("loaded", [True, False])
async def test_a_silent_worker_is_killed(loaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOADING_BEATS", 20)
    async with handled() as (worker, channel):
        if loaded:
            channel.send(Message.LOADED)
            await worker.settled.wait()
        reason = await asyncio.wait_for(worker.ended(), 60)
        assert worker.process.returncode == -9
    beats = MISSED_BEATS if loaded else 20
    assert reason == f"worker 7 hangs: no heartbeat for {beats * 0.01:g} s"


@pytest.mark.usefixtures("quick")
async def test_a_worker_that_is_heard_of_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any message counts, and a finishing worker may be silent."""
    beats = []
    beat = WorkerHandle._beat
    monkeypatch.setattr(WorkerHandle, "_beat", lambda self: (beats.append(self), beat(self)))
    async with handled() as (worker, channel):
        channel.send(Message.LOADED)
        while len(beats) < 3 * MISSED_BEATS:
            for message in (Message.ALIVE, Message.CLOSED + b"0"):
                seen = len(beats)
                channel.send(message)
                await until(lambda seen=seen: len(beats) > seen)
        assert worker.process.returncode is None
        await until(lambda: worker.late)
        assert worker.serves
        channel.send(Message.ALIVE)
        await until(lambda: not worker.late)
        worker.finish()
        seen = len(beats)
        await asyncio.sleep(0.01 * 2 * MISSED_BEATS)
        assert len(beats) == seen
        assert worker.process.returncode is None


async def test_beats_that_this_process_itself_misses_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a sleep of the machine, or a paused supervisor, workers still count as alive."""
    kills: list[int] = []
    monkeypatch.setattr(WorkerHandle, "kill", lambda worker: kills.append(worker.process.pid))
    monkeypatch.setattr(supervisor, "BEAT_SECONDS", 0.01)
    async with handled() as (worker, channel):
        channel.send(Message.LOADED)
        await worker.settled.wait()
        time.sleep(0.01 * 3 * MISSED_BEATS)
        for _ in range(3):
            await asyncio.sleep(0)
        assert kills == []
        await until(lambda: kills)


async def test_killing_one_that_has_just_ended_leaves_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked, wait = threading.Event(), os.waitpid

    def late(*arguments: int) -> tuple[int, int]:
        looked.wait(10)
        return wait(*arguments)

    monkeypatch.setattr(os, "waitpid", late)  # where asyncio waits for it, in a thread
    async with handled() as (worker, _):
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        ended = psutil.Process(worker.process.pid)
        await until(lambda: ended.status() == psutil.STATUS_ZOMBIE)
        worker.kill()
        looked.set()
        assert await worker.process.wait() == 3
