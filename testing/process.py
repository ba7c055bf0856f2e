"""Server processes: start them on a free port, wait for them, stop or kill them, read their log."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from testing.blocking import probe

START_SECONDS, STOP_SECONDS = 120.0, 60.0
POLL_SECONDS = 0.02
PROBE_SECONDS = 5.0
LAST_WORDS = 1000


class StartError(Exception):
    """Failed start: the server ended, or gave no right reply in time."""


def free_port() -> int:
    """Return a free TCP port of this machine, which it gives to no other process for a minute.

    A connection that its server has closed keeps the port in TIME_WAIT: the kernel chooses it for
    no other socket, and a server, which sets SO_REUSEADDR, can bind it.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address):
            server.accept()[0].close()
        return int(address[1])


def clean_environment(**others: str) -> dict[str, str]:
    """Return this process's variables without Headscope's settings, the hub offline, and others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADSCOPE_")}
    return {**kept, "HF_HUB_OFFLINE": "1", **others}


def run_python(
    *arguments: str | Path, cwd: Path | None = None, **others: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, in this process's environment and other variables.

    Raises:
        subprocess.TimeoutExpired: it does not end in `START_SECONDS`.

    """
    command, environment = [sys.executable, *map(str, arguments)], os.environ | others
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )


class Service:
    """Server process, in a process group of its own that ends with the context."""

    address = "127.0.0.1"

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.port = port
        self._pass_fds = pass_fds
        self.url = f"http://127.0.0.1:{port}"
        self._log, name = tempfile.mkstemp()
        Path(name).unlink()
        self._environment = clean_environment() if environment is None else environment
        self.process = self._started(command)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(stdin)

    def _started(self, command: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self._environment,
            pass_fds=self._pass_fds,
            start_new_session=True,
        )

    def start_again(self) -> None:
        """Kill the process group, and start the same command with an empty standard input."""
        self.kill()
        self.process = self._started(self.process.args)
        assert self.process.stdin is not None
        self.process.stdin.close()

    @classmethod
    def of_headscope(cls, *flags: str, environment: Mapping[str, str] | None = None) -> Self:
        """Start `headscope serve` with these flags on a free port."""
        port = free_port()
        command = [sys.executable, "-m", "service", "serve", "--port", str(port), *flags]
        return cls(command, port, environment=environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        os.close(self._log)

    @property
    def log(self) -> str:
        """Output of the process and its children so far."""
        return os.pread(self._log, os.fstat(self._log).st_size, 0).decode(errors="replace")

    @property
    def children(self) -> list[psutil.Process]:
        """Processes that the server started itself, such as workers."""
        return psutil.Process(self.process.pid).children()

    def ready(self) -> bool:
        """Return whether /health/ready is answered with 200."""
        reply = probe(self.port, "/health/ready", seconds=PROBE_SECONDS, address=self.address)
        return reply is not None and reply.status == 200

    def wait_until_ready(self) -> None:
        """Wait for readiness.

        Raises:
            StartError: the process ended, or is not ready in time.

        """
        self.wait_until(self.ready)

    def wait_until(
        self,
        condition: Callable[[], bool],
        seconds: float = START_SECONDS,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """Wait until a condition holds while the process runs.

        Raises:
            StartError: the process ended, or the time ran out.

        """
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None:
                raise StartError(
                    f"the server ended with {self.process.returncode}: {self.log[-LAST_WORDS:]}"
                )
            if time.monotonic() > deadline:
                raise StartError(f"no right reply in {seconds:g} s: {self.log[-LAST_WORDS:]}")
            time.sleep(poll_seconds)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process group; SIGSTOP and SIGCONT pause and resume it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = STOP_SECONDS) -> int:
        """Send a signal to the process alone, wait for its end, and return the exit code.

        Raises:
            subprocess.TimeoutExpired: the process does not end in time.

        """
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def kill(self) -> None:
        """Kill the process group."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        self.process.wait()
