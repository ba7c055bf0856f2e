"""Port: bound on every address, with a backlog for the connections to accept."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import time

import pytest

from service.process import listener as module
from service.process.listener import Listener, bound
from tests.service.harness import until
from tests.service.logged import Log


@pytest.mark.anyio
async def test_connections_wait_until_they_are_taken_in() -> None:
    given: list[socket.socket] = []
    takes = False

    def give(connection: socket.socket) -> bool:
        if takes:
            given.append(connection.dup())
        return takes

    with bound("127.0.0.1", 0) as (listener,):
        address = listener.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        opened = Listener(listener, give)
        clients = [socket.create_connection(address) for _ in range(100)]
        await asyncio.sleep(0.1)
        assert given == []
        takes = True
        await until(lambda: len(given) == 100)
        late = [socket.create_connection(address) for _ in range(5)]
        opened.close()
        assert len(given) == 105
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        for number, client in enumerate([*clients, *late]):
            client.sendall(b"%d" % number)
        assert [int(one.recv(9)) for one in given] == list(range(105))
        for one in (*given, *clients, *late):
            one.close()


def test_every_address_of_a_host_on_one_port() -> None:
    with bound("localhost", 0) as sockets:
        ports = {listener.getsockname()[1] for listener in sockets}
        assert len(ports) == 1
    with bound("127.0.0.1", 0) as (listener,):
        listener.listen()
        taken = listener.getsockname()[1]
        line = f"cannot bind port {taken} of 127.0.0.1: Address already in use"
        with pytest.raises(OSError, match=line) as refused, bound("127.0.0.1", 0, taken):
            pass
        assert refused.value.errno == errno.EADDRINUSE
    with pytest.raises(OSError, match="known"), bound("no.such.host.invalid", 0):
        pass
    gc.collect()


class WithoutDescriptors(socket.socket):
    """Listening socket of a process that has no descriptor left for a while."""

    left = False
    asked = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.asked += 1
        if not self.left:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


@pytest.mark.anyio
async def test_without_descriptors_connections_wait(
    monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    """The lack is logged once, however long it lasts, and accepting is retried now and then."""
    pause = 0.05
    monkeypatch.setattr(module, "EXHAUSTED_SECONDS", pause)
    given: list[socket.socket] = []

    def give(connection: socket.socket) -> bool:
        given.append(connection.dup())
        return True

    with WithoutDescriptors() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.setblocking(False)
        opened = Listener(listener, give)
        began = time.monotonic()
        clients = [socket.create_connection(listener.getsockname()) for _ in range(3)]
        await until(lambda: listener.asked >= 5)
        assert listener.asked <= (time.monotonic() - began) / pause + 1
        assert given == []
        listener.left = True
        await until(lambda: len(given) == 3)
        opened.close()
    (line,) = [line for line in log.objects if line["logger"] == "headscope"]
    assert line["message"] == (
        "cannot accept connections for now; new connections wait: Too many open files"
    )
    for number, (client, taken) in enumerate(zip(clients, given, strict=True)):
        with client, taken:
            client.send(b"%d" % number)
            assert int(taken.recv(9)) == number
