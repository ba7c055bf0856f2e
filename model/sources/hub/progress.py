"""What a download tells while it runs: lines, where no terminal shows `huggingface_hub`'s bar."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_EVERY_SECONDS = 10.0
_ATTEMPTS = (
    (re.compile(r"Waiting ([\d.]+)s"), "the hub asks to wait {} s"),
    (re.compile(r"Retrying in ([\d.]+)s"), "the hub fails; trying again in {} s"),
    (re.compile(r"Trying to (resume)"), "the connection broke; resuming"),
)
"""Warnings of `huggingface_hub` of attempts that may take minutes, and what is said of them."""


class _Attempts(logging.Handler):
    """Tells of attempts alone: other warnings are advice, and what fails is raised."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        for pattern, said in _ATTEMPTS:
            if found := pattern.search(text):
                self._progress(said.format(found[1]))


@contextlib.contextmanager
def attempts_told(progress: Callable[[str], None]) -> Iterator[None]:
    """Lines about failed attempts, in place of whatever else `huggingface_hub` logs."""
    from huggingface_hub.utils.logging import get_logger  # noqa: PLC0415 - only a download needs it

    logger = get_logger("huggingface_hub")  # with the handler that the library gives it
    handlers, propagate = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [_Attempts(progress)], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate


@contextlib.contextmanager
def size_told(
    blobs: Path, name: str, size: int | None, progress: Callable[[str], None]
) -> Iterator[None]:
    """A line about a file as its download begins, and one every ten seconds without a terminal.

    Args:
        blobs: the cache's folder of the repository's files, where unfinished ones grow.
        name: of the file.
        size: its bytes, where the hub tells them.
        progress: called with each line.

    """
    whole = "" if size is None else f" of {_megabytes(size)}"
    progress(f"fetching {name}" if size is None else f"fetching {name}, {_megabytes(size)}")
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY_SECONDS):
            progress(f"{name}: {_megabytes(_unfinished(blobs))}{whole}")

    thread = threading.Thread(target=watch, daemon=True)
    if not sys.stderr.isatty():
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()


def _unfinished(blobs: Path) -> int:
    """Bytes of the largest unfinished file."""
    sizes = [0]
    for path in blobs.glob("*.incomplete"):
        with contextlib.suppress(FileNotFoundError):  # it was finished meanwhile
            sizes.append(path.stat().st_size)
    return max(sizes)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
