"""Sandbox that runs an image's command as docker-compose.yml does, without a docker engine.

The command is process 1 and runs as the image's user. The file system is read-only except /tmp.
The process has no capabilities and cannot gain any. The network is this machine's.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from deploy.image.engine import EngineError

READY_SECONDS = 120
STOP_SECONDS = 20
MOUNTS = """
root=$1 user=$2
shift 2
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc -o ro proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$root/tmp"
exec chroot --userspec="$user" "$root" setpriv --no-new-privs env -i "$@"
"""
"""Script for a mount and process namespace of its own, so that no mount outlives it."""
INSIDE = """
import importlib.metadata, os, pathlib, re, shutil
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
assert os.getpid() == 1 and os.getuid() > 0 and os.getgid() > 0, (os.getpid(), os.getuid())
assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0 and status["NoNewPrivs"] == "1"
assert not os.access("/", os.W_OK) and os.statvfs("/").f_flag & os.ST_RDONLY
names = (package.name for package in importlib.metadata.distributions())
print(*sorted(re.sub("[-_.]+", "-", name).lower() for name in names))
assert not any(map(shutil.which, ["cc", "gcc", "g++", "make", "ld"]))
assert not pathlib.Path("/build").exists() and not pathlib.Path("/package").exists()
"""
"""Script that checks the sandbox from inside, and prints the installed distributions' names."""


def free_port() -> int:
    """Return a free TCP port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass(frozen=True)
class Sandbox:
    """A container's root and its image's configuration, in docker's form.

    Attributes:
        root: mounted file system.
        config: `User`, `Env`, `Entrypoint`, `Cmd` and `Healthcheck` of the image.
        port: port of this machine on which the service listens.

    """

    root: Path
    config: dict[str, Any]
    port: int

    @property
    def url(self) -> str:
        """Address of the service."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, command: list[str], output: IO[str] | int) -> subprocess.Popen[str]:
        """Start a command of the image.

        Args:
            command: words of the command line.
            output: destination of standard output and standard error.

        """
        return subprocess.Popen(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-euc", MOUNTS),
                *("inside", str(self.root), self.config["User"], *self.config["Env"]),
                *(f"HEADSCOPE_PORT={self.port}", *command),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def call(self, command: list[str], seconds: float = 60) -> str:
        """Run a command of the image, and return its output.

        Raises:
            EngineError: the command failed.

        """
        process = self.start(command, subprocess.PIPE)
        try:
            output, _ = process.communicate(timeout=seconds)
        finally:
            process.kill()
        if process.returncode:
            raise EngineError(f"{command[0]} failed in the image:\n{output}")
        return output

    def distributions(self) -> set[str]:
        """Check the sandbox from inside, and return the names of the installed distributions."""
        return set(self.call(["python", "-c", INSIDE]).split())

    def is_healthy(self) -> bool:
        """Return whether the image's own health check passes."""
        process = self.start(self.config["Healthcheck"]["Test"][1:], subprocess.DEVNULL)
        return process.wait(timeout=60) == 0


class Service:
    """Process of the image's own command in a sandbox, as a context manager.

    Raises:
        EngineError: the service is not ready in time, or does not exit with status 0 in time.

    """

    def __init__(self, sandbox: Sandbox, log: Path, *options: str) -> None:
        self._sandbox = sandbox
        self._log = log
        self._command = [*sandbox.config["Entrypoint"], *sandbox.config["Cmd"], *options]

    def __enter__(self) -> Service:
        with self._log.open("w", encoding="utf-8") as output:
            self._process = self._sandbox.start(self._command, output)
        return self

    def wait_until_ready(self, interval: float = 0.02) -> float:
        """Wait until `GET /health/ready` is answered with 200, and return the seconds it took."""
        began = time.monotonic()
        while not self._answers_ready():
            if self._process.poll() is not None or time.monotonic() - began > READY_SECONDS:
                raise EngineError(f"not ready:\n{self._log.read_text(encoding='utf-8')}")
            time.sleep(interval)
        return time.monotonic() - began

    def _answers_ready(self) -> bool:
        request = b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        try:
            with socket.create_connection(("127.0.0.1", self._sandbox.port), timeout=5) as peer:
                peer.sendall(request)
                return peer.recv(12) == b"HTTP/1.1 200"
        except OSError:
            return False

    def terminate(self) -> None:
        """Send SIGTERM to the service, process 1 of its namespace."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
        subprocess.run(["kill", f"-{signal.SIGTERM.name}", *children], check=True)

    def wait_for_end(self) -> None:
        """Wait for an exit with status 0."""
        try:
            status = self._process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"still running {STOP_SECONDS} s after SIGTERM") from error
        if status:
            raise EngineError(f"ended with {status}:\n{self._log.read_text(encoding='utf-8')}")

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
