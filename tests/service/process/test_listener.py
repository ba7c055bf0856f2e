"""Port of a service, and its folder."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.process import folder
from service.process import listener as module
from service.process.listener import Listener, bound
from service.settings import Settings
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
        opened = Listener(listener, give, Settings())
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
        opened = Listener(listener, give, Settings())
        began = time.monotonic()
        clients = [socket.create_connection(listener.getsockname()) for _ in range(3)]
        await until(lambda: listener.asked >= 5)
        assert listener.asked <= (time.monotonic() - began) / pause + 1
        assert given == []
        listener.left = True
        await until(lambda: len(given) == 3)
        opened.close()
    (line,) = [line for line in log.objects if line["level"] == "error"]
    assert line["message"] == (
        "cannot accept connections for now; new connections wait: Too many open files"
    )
    for number, (client, taken) in enumerate(zip(clients, given, strict=True)):
        with client, taken:
            client.send(b"%d" % number)
            assert int(taken.recv(9)) == number


HOLDING = """
import sys
from pathlib import Path
from service.process import folder

with folder.made() as made:
    print(made, flush=True)
    sys.stdin.read()
"""
JOINING = """
import sys
from pathlib import Path
from service.process import folder

with folder.held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder of a test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextlib.contextmanager
def process(parent: Path, program: str, *arguments: str) -> Iterator[tuple[str, subprocess.Popen]]:
    """A process that has a folder, the line that it says, and its end."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "TMPDIR": str(parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout
        try:
            yield running.stdout.readline().strip(), running
        finally:
            running.kill()


def names(parent: Path) -> set[str]:
    return {one.name for one in parent.iterdir()}


def test_it_is_there_until_the_end(parent: Path) -> None:
    with folder.made() as made:
        assert names(parent) == {made.name}
        assert made.stat().st_mode & 0o777 == 0o700
        assert names(made) == {folder.LOCK}
        (made / "counter_0.db").touch()
    assert names(parent) == set()


@pytest.mark.slow
def test_it_goes_when_the_last_of_its_processes_is_gone(parent: Path, log: Log) -> None:
    with process(parent, HOLDING) as (abandoned, first):
        with process(parent, JOINING, abandoned) as (said, second):
            assert said == "held"
            first.kill()
            first.wait()
            with folder.made() as made:
                assert names(parent) == {Path(abandoned).name, made.name}
            second.kill()
            second.wait()
        Path(abandoned, "counter_0.db").touch()
        foreign = Path(abandoned, "notes.txt")
        foreign.write_text("a user's own")
        with folder.made() as made:
            assert names(parent) == {Path(abandoned).name, made.name}
        assert names(Path(abandoned)) == {folder.LOCK, "counter_0.db", "notes.txt"}
        foreign.unlink()
        with folder.made() as made:
            assert names(parent) == {made.name}
    left, removed = log.text.splitlines()
    assert left.endswith(
        f"{abandoned}, of a service that has ended, is left: no service made notes.txt in it"
    )
    assert removed.endswith(f"removed {abandoned}, of a service that has ended")


def test_foreign_folders_stay(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a lock, with a lock of another program, of another user, a link, a file."""
    for name in ("headscope-starting", "headscope-notes", "elsewhere"):
        (parent / name).mkdir()
    (parent / "headscope-notes" / folder.LOCK).write_text("another program's")
    (parent / "elsewhere" / folder.LOCK).write_bytes(folder.MARK)
    (parent / "headscope-link").symlink_to(parent / "elsewhere")
    (parent / "headscope-file").touch()
    before = names(parent)
    with folder.made():
        pass
    assert names(parent) == before
    (parent / "headscope-other").mkdir()
    (parent / "headscope-other" / folder.LOCK).write_bytes(folder.MARK)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with folder.made():
        pass
    assert names(parent) == before | {"headscope-other"}
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(parent))
    with folder.made():
        pass
    assert names(parent) == before


def test_who_comes_too_late_does_not_join(parent: Path) -> None:
    with pytest.raises(FileNotFoundError), folder.held(parent):
        pass
