"""Sandbox that runs an image's command as docker-compose.yml does, without a docker engine.

The command is process 1 and runs as the image's user. The file system is read-only except /tmp.
The process has no capabilities and cannot gain any. The network is this machine's.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.image.engine import EngineError
from testing import process

STOP_SECONDS = 20.0
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

    def command(self, words: list[str]) -> list[str]:
        """Return the command line that runs a command of the image in the sandbox."""
        return [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-euc", MOUNTS),
            *("inside", str(self.root), self.config["User"], *self.config["Env"]),
            *(f"HEADSCOPE_PORT={self.port}", *words),
        ]

    def call(self, words: list[str], seconds: float = 60) -> str:
        """Run a command of the image, and return its output.

        Raises:
            EngineError: the command failed.

        """
        done = subprocess.run(
            self.command(words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise EngineError(f"{words[0]} failed in the image:\n{done.stdout}")
        return done.stdout

    def distributions(self) -> set[str]:
        """Check the sandbox from inside, and return the names of the installed distributions."""
        return set(self.call(["python", "-c", INSIDE]).split())

    def is_healthy(self) -> bool:
        """Return whether the image's own health check passes."""
        command = self.command(self.config["Healthcheck"]["Test"][1:])
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        return done.returncode == 0


class Service(process.Service):
    """Process of the image's own command in a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        config = sandbox.config
        command = sandbox.command([*config["Entrypoint"], *config["Cmd"]])
        super().__init__(command, sandbox.port, environment=os.environ)

    def terminate(self) -> None:
        """Send SIGTERM to the service, process 1 of its namespace."""
        for child in self.children:
            child.terminate()

    def wait_for_end(self) -> None:
        """Wait for an exit with status 0.

        Raises:
            EngineError: the service does not exit in time, or exits with another status.

        """
        try:
            status = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"still running {STOP_SECONDS:g} s after SIGTERM") from error
        if status:
            raise EngineError(f"ended with {status}:\n{self.log}")
