"""Exit codes of commands, and their output to a terminal, a file, or a pipe."""

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
from enum import IntEnum
from types import FrameType
from typing import TextIO

import click
from pydantic_core import ValidationError

from model.errors import ModelError, VerificationError
from service.errors import ServiceError
from service.system.logs import printable


class Exit(IntEnum):
    """Exit codes; codes above 128 are 128 plus the number of a signal."""

    DONE = 0
    FAILED = 1
    WRONG_USE = 2
    """Invalid command line or variable; no work was done."""
    SKIPPED = 3
    """Done, except for skipped rows."""
    UNVERIFIED = 4
    """Disagreement between the graphs and PyTorch."""
    INTERRUPTED = 128 + 2
    """Interrupted by Ctrl-C."""
    CLOSED_PIPE = 128 + 13
    """Closed pipe: the reader of the output has exited."""


class WrongUseError(ValueError):
    """Option or variable with an invalid value, or mutually exclusive options."""


FAILURES = (ModelError, ServiceError, ValueError, OSError)
"""Exceptions that a command reports as a one-line message."""


def code_of(failure: Exception) -> Exit:
    """Return the exit code of one of `FAILURES`."""
    match failure:
        case WrongUseError():
            return Exit.WRONG_USE
        case VerificationError():
            return Exit.UNVERIFIED
        case _:
            return Exit.FAILED


def verified(passed: bool) -> Exit:
    """Return the exit code of a verification."""
    return Exit.DONE if passed else Exit.UNVERIFIED


def one_line(failure: Exception) -> str:
    """Return a failure's message on one line, with escapes of what a terminal does not print."""
    said = str(failure)
    if isinstance(failure, ValidationError):
        said = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in failure.errors()
        )
    return printable(" ".join(said.split()))


COMPLETION = "_HEADSCOPE_COMPLETE"
"""Environment variable by which a shell requests completion, as click's scripts set it."""


def completion() -> str:
    """Return the completion request of a shell; empty if there is none."""
    return os.environ.get(COMPLETION, "")


def colours() -> bool | None:
    """Return False if NO_COLOR is set (https://no-color.org) or the terminal is dumb, else None.

    With None, click decides by the stream.
    """
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def fail(command: str, message: str) -> None:
    """Print an error message to standard error."""
    name = click.style(f"{command}:", fg="red", bold=True)
    with contextlib.suppress(BrokenPipeError):
        click.echo(f"{name} {message}", err=True, color=colours())


@contextlib.contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """Yield a function that prints steps to standard error, with their times on a terminal."""
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
    """Let Ctrl-C end the block even if a library, such as torch, replaces the KeyboardInterrupt."""
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
    """Lines of steps on a terminal; the last line shows the running time of its step."""

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
        """Begin a step, and end the previous step."""
        with self._lock:
            self._finish()
            self._line, self._started = f"headscope: {printable(step)}", time.monotonic()
            self._write(self._line)
            # a wrapped line cannot be overwritten, and a download draws its own bar
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
            slow = seconds >= self._every_seconds
            self._write(f"\r{self._line}  {seconds:.1f} s\n" if slow else "\n")
            self._line = ""

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            self._stream.write(text)
            self._stream.flush()


def reader_left() -> bool:
    """Return whether the reading end of an output pipe is closed."""
    poll = select.poll()
    for descriptor in _descriptors():
        poll.register(descriptor, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def silence() -> None:
    """Redirect output to /dev/null, as flushing the buffers at exit would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in _descriptors():
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _descriptors() -> Iterator[int]:
    """Yield the file descriptors of standard output and error, if they have one."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(io.UnsupportedOperation, AttributeError):
            yield stream.fileno()
