"""The port: bound on every address, and open for as many connections as are taken in."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from service.process.listener import Listener, bound
from tests.service.harness import until


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
        with pytest.raises(OSError, match="in use"), bound("127.0.0.1", taken):
            pass
    with pytest.raises(OSError, match="known"), bound("no.such.host.invalid", 0):
        pass
    gc.collect()
