"""`headscope encode` in processes that are forked from one that has imported everything."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from service.cli import main

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "trials.encoding",
        "service.files.run",
        "service.files.parquet",
        "service.models.start",
    ]
)
HANG_SECONDS = 120.0


class Encoding:
    """Run of the command, with an engine that answers from a hash."""

    def __init__(self, arguments: Sequence[str], said: Path) -> None:
        """Start the run; its standard error goes to the file `said`."""
        self._said = said
        self._process: BaseProcess = _CONTEXT.Process(target=_run, args=[[*arguments], said])
        self._process.start()

    def ended(self) -> tuple[int, list[str]]:
        """Wait for the end; returns the exit code, and the lines of what went wrong."""
        self._process.join(HANG_SECONDS)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        said = self._said.read_text(encoding="utf-8")
        self._said.unlink()
        lines = [line for line in said.splitlines() if line.strip()]
        return self._process.exitcode or 0, lines

    def killed(self, after_seconds: float) -> bool:
        """Kill the run after some seconds; returns whether it still ran."""
        self._process.join(after_seconds)
        running = self._process.exitcode is None
        if running:
            self._process.kill()
            self._process.join()
            self._said.unlink(missing_ok=True)
        return running


def _run(arguments: list[str], said: Path) -> None:
    os.environ["HEADSCOPE_ENGINE"] = "fake"
    with said.open("wb") as file:
        os.dup2(file.fileno(), 2)
    sys.exit(main(arguments))


def seconds_of(arguments: Sequence[str], said: Path) -> float:
    """Return the seconds of an undisturbed run.

    Raises:
        RuntimeError: it failed.

    """
    began = time.monotonic()
    code, lines = Encoding(arguments, said).ended()
    if code:
        raise RuntimeError(f"headscope encode failed: {lines}")
    return time.monotonic() - began


Listing = dict[str, tuple[str, int, str]]


def listing(folder: Path) -> Listing:
    """Return what each thing below a folder is, its inode, and its SHA-256 or its link's target."""
    return {str(path.relative_to(folder)): _described(path) for path in folder.rglob("*")}


def _described(path: Path) -> tuple[str, int, str]:
    found = path.lstat()
    content = ""
    if stat.S_ISLNK(found.st_mode):
        content = str(path.readlink())
    elif stat.S_ISREG(found.st_mode):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    return stat.filemode(found.st_mode), found.st_ino, content


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[str]:
    """Mount a file system of some size at a folder.

    Yields:
        Why it cannot be mounted here; empty where it is.

    """
    mounted = mount("-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder))
    try:
        yield mounted
    finally:
        if not mounted:
            subprocess.run(["umount", str(folder)], check=True)


def mount(*arguments: str) -> str:
    """Run mount; returns why it failed, or nothing."""
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return str(error)
    return done.stderr.strip() or "mount failed" if done.returncode else ""
