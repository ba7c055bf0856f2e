"""What a command writes, and to what: a terminal, a file, or a pipe whose reader may leave."""

from __future__ import annotations

import contextlib
import io
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TextIO

import click

from service.system.logs import printable

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
    with interruptible():
        if not sys.stderr.isatty():
            yield lambda step: click.echo(f"headscope: {printable(step)}", err=True)
            return
        timed = TimedSteps(sys.stderr)
        try:
            yield timed
        finally:
            timed.close()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Work that Ctrl-C ends even where a library takes it for a failure of its own, as torch does.

    Raises:
        KeyboardInterrupt: it was asked for.

    """
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not heeded or threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception:
        if asked.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class TimedSteps:
    """Lines on a terminal, the last of which shows how long its step has taken."""

    def __init__(self, stream: TextIO, every_seconds: float = 1.0) -> None:
        self._stream = stream
        self._every_seconds = every_seconds
        self._lock = threading.Lock()
        self._line = ""
        self._started = 0.0
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._ticker.start()

    def __call__(self, step: str) -> None:
        """Begin a step; the one before has ended."""
        with self._lock:
            self._finish()
            self._line, self._started = f"headscope: {printable(step)}", time.monotonic()
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

    def _tick(self) -> None:
        while not self._ended.wait(self._every_seconds):
            with self._lock:
                if self._line:
                    self._write(f"\r{self._line}  {time.monotonic() - self._started:.0f} s")

    def _finish(self) -> None:
        if self._line:
            seconds = time.monotonic() - self._started
            worth_telling = seconds >= self._every_seconds
            self._write(f"\r{self._line}  {seconds:.1f} s\n" if worth_telling else "\n")
            self._line = ""

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            self._stream.write(text)
            self._stream.flush()


def flush() -> None:
    """Write what is left in the buffer of standard output.

    Raises:
        OSError: it cannot be written.

    """
    if sys.stdout is not None:  # as it is where a shell closed it: `>&-`
        sys.stdout.flush()


def reader_left() -> bool:
    """Whether the other end of a pipe that we write to is closed."""
    poll = select.poll()
    for descriptor in _descriptors():
        poll.register(descriptor, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def silence() -> None:
    """Write no more: what is left in buffers would fail again as the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in _descriptors():
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _descriptors() -> Iterator[int]:
    """Those of standard output and error; a test's may have none."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(io.UnsupportedOperation, AttributeError):
            yield stream.fileno()
