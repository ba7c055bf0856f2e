"""systemd's protocols: a real datagram socket for its messages, and real passed sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from service.process.listener import ServiceManager, passed_sockets, service_manager
from testing.process import Service, clean_environment
from tests.service.harness import until
from tests.service.logged import Log

PASSING = """
import os, sys
given, *command = sys.argv[1:]
os.dup2(int(given), 3)
os.environ["LISTEN_PID"] = os.environ["WATCHDOG_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "service", "serve", *command])
"""
"""Program that becomes the service, whose first passed socket is the given descriptor."""


@contextlib.contextmanager
def receiver(address: str) -> Iterator[socket.socket]:
    """Yield the end of messages at a UNIX address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind(address)
        received.settimeout(60)
        yield received


def heard(received: socket.socket) -> bytes:
    """Return the next message that is no heartbeat."""
    while (message := received.recv(200)) == b"WATCHDOG=1":
        pass
    return message


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_messages_arrive_as_sd_notify_writes_them(tmp_path: Path, kind: str, log: Log) -> None:
    name = str(tmp_path / "n") if kind == "path" else f"@headscope-test-{os.getpid()}"
    environment = {"NOTIFY_SOCKET": name, "PATH": "/bin"}
    manager = service_manager(environment)
    assert environment == {"PATH": "/bin"}
    manager.ready("lost")
    assert "systemd does not get READY=1" in log.text
    with receiver(name.replace("@", "\0")) as received:
        manager.status("loading")
        manager.ready("serves")
        manager.stopping("stops")
        lines = [received.recv(100) for _ in range(3)]
    assert lines == [b"STATUS=loading", b"READY=1\nSTATUS=serves", b"STOPPING=1\nSTATUS=stops"]


@pytest.mark.anyio
async def test_heartbeats_end_when_the_service_cannot_answer(tmp_path: Path, log: Log) -> None:
    answers = True
    with receiver(str(tmp_path / "n")) as received:
        received.setblocking(False)
        ServiceManager(str(tmp_path / "n"), 0.02).watch(lambda: answers)
        for _ in range(3):
            assert await asyncio.get_running_loop().sock_recv(received, 100) == b"WATCHDOG=1"
        answers = False
        await until(lambda: "no heartbeat" in log.text)
        with contextlib.suppress(BlockingIOError):
            while received.recv(100):
                pass
        await until(lambda: log.text.count("no heartbeat") == 3)
        with pytest.raises(BlockingIOError):
            received.recv(100)


def test_variables_of_another_process_are_not_its_own() -> None:
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "a", "WATCHDOG_PID": "1"}
    assert passed_sockets(environment) == []
    environment |= {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1"}
    service_manager(environment).watch(lambda: True)  # needs no event loop, as nothing is sent
    assert environment == {}


@pytest.mark.parametrize("name", ["LISTEN_PID", "LISTEN_FDS", "WATCHDOG_PID", "WATCHDOG_USEC"])
@pytest.mark.parametrize("value", ["x", "-1", "1.5"])
def test_variables_that_are_not_numbers_are_named(name: str, value: str) -> None:
    own = str(os.getpid())
    given = {"LISTEN_PID": own, "LISTEN_FDS": "0", "WATCHDOG_PID": own, "WATCHDOG_USEC": "1"}
    given[name] = value
    with pytest.raises(ValueError, match=f"{name}={value} is not a whole number"):
        service_manager(given), passed_sockets(given)


@pytest.mark.e2e
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_service_takes_a_passed_socket_and_reports_its_state(
    artifact: Artifact, tmp_path: Path, workers: str
) -> None:
    with (
        receiver(str(tmp_path / "n")) as received,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        port, given = listener.getsockname()[1], listener.fileno()
        waiting = socket.create_connection(("127.0.0.1", port))
        waiting.sendall(b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        flags = ["--engine", "fake", "--artifact", str(artifact.folder), "--workers", workers]
        command = [sys.executable, "-c", PASSING, str(given), *flags]
        environment = clean_environment(
            NOTIFY_SOCKET=str(tmp_path / "n"), WATCHDOG_USEC="100000", LISTEN_FDS="1"
        )
        with Service(command, port, environment=environment, pass_fds=[given]) as service:
            assert received.recv(100).startswith(b"STATUS=Loading")
            assert received.recv(100).startswith(b"READY=1\nSTATUS=Serving")
            assert received.recv(100) == b"WATCHDOG=1"
            assert waiting.recv(100).startswith(b"HTTP/1.1 200")
            waiting.close()
            service.process.send_signal(signal.SIGTERM)
            message = heard(received)
            assert message.startswith(b"STOPPING=1\nSTATUS=Stopping")
            assert service.process.wait(60) in (0, -signal.SIGTERM), service.log  # both are clean
        socket.create_connection(("127.0.0.1", port)).close()  # waits for the next start


@pytest.mark.e2e
def test_a_passed_descriptor_that_does_not_listen_is_refused(
    artifact: Artifact, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as passed:
        flags = ["--engine", "fake", "--artifact", str(artifact.folder)]
        command = [sys.executable, "-c", PASSING, str(passed.fileno()), *flags]
        environment = clean_environment(LISTEN_FDS="1")
        with Service(command, 0, environment=environment, pass_fds=[passed.fileno()]) as service:
            assert service.process.wait(60) == 1
            assert "descriptor 3 is not a listening TCP socket" in service.log
