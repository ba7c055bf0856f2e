"""What a command writes, and to what: a terminal, a file, or a pipe whose reader may leave."""

from __future__ import annotations

import contextlib
import io
import os
import select
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

import click

COMPLETION = "_HEADSCOPE_COMPLETE"
"""The variable that a shell's completion asks by, as click's scripts have it."""


def completion() -> str:
    """What a shell asks for: its script, or the words that may follow; mostly nothing."""
    return os.environ.get(COMPLETION, "")


def colours() -> bool | None:
    """False where NO_COLOR forbids them (https://no-color.org); else the stream decides."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def fail(command: str, message: str) -> None:
    """Tell on standard error what went wrong."""
    name = click.style(f"{command}:", fg="red", bold=True)
    with contextlib.suppress(BrokenPipeError):
        click.echo(f"{name} {message}", err=True, color=colours())


@contextlib.contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """What tells the steps of a command on standard error: lines, with their time on a terminal."""
    if not sys.stderr.isatty():
        yield lambda step: click.echo(f"headscope: {step}", err=True)
        return
    timed = TimedSteps(sys.stderr)
    try:
        yield timed
    finally:
        timed.close()


class TimedSteps:
    """Lines on a terminal, the last of which shows how long its step has taken."""

    def __init__(self, stream: TextIO, every_seconds: float = 1.0) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._line = ""
        self._started = 0.0
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, args=(every_seconds,), daemon=True)
        self._ticker.start()

    def __call__(self, step: str) -> None:
        """Begin a step; the one before has ended."""
        with self._lock:
            self._finish()
            self._line, self._started = f"headscope: {step}", time.monotonic()
            self._write(self._line)
            # a line that wraps cannot be written over, and a download draws a bar of its own
            if len(self._line) + 9 > shutil.get_terminal_size().columns or "fetching" in step:
                self._line = ""
                self._write("\n")

    def close(self) -> None:
        """End the last step."""
        self._ended.set()
        self._ticker.join()
        with self._lock:
            self._finish()

    def _tick(self, every_seconds: float) -> None:
        while not self._ended.wait(every_seconds):
            with self._lock:
                if self._line:
                    self._write(f"\r{self._line}  {time.monotonic() - self._started:.0f} s")

    def _finish(self) -> None:
        if self._line:
            self._write(f"\r{self._line}  {time.monotonic() - self._started:.1f} s\n")
            self._line = ""

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            self._stream.write(text)
            self._stream.flush()


def reader_left() -> bool:
    """Whether the other end of a pipe that we write to is closed."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(io.UnsupportedOperation, ValueError):
            poll.register(stream.fileno(), select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def silence() -> None:
    """Write no more: what is left in buffers would fail again as the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(io.UnsupportedOperation, ValueError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
