"""Progress lines during a download, if no terminal shows `huggingface_hub`'s bar."""

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
"""Warnings of `huggingface_hub` about retries that may take minutes → lines to report."""


class _Attempts(logging.Handler):
    """Log handler that only reports retries: other warnings are advice, failures raise errors."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        for pattern, line in _ATTEMPTS:
            if match := pattern.search(text):
                self._progress(line.format(match[1]))


@contextlib.contextmanager
def attempts_told(progress: Callable[[str], None]) -> Iterator[None]:
    """Report retries, and suppress all other messages of `huggingface_hub`."""
    from huggingface_hub.utils.logging import get_logger  # noqa: PLC0415 - only a download needs it

    logger = get_logger("huggingface_hub")  # the logger holds the handler of the library
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
    """Report a file's download at its start and, without a terminal, every ten seconds.

    Args:
        blobs: folder of the repository's files in the cache, where unfinished ones grow.
        name: name of the file.
        size: its size in bytes, if the hub reports it.
        progress: called with each line.

    """
    total = "" if size is None else f" of {_megabytes(size)}"
    progress(f"fetching {name}" if size is None else f"fetching {name}, {_megabytes(size)}")
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY_SECONDS):
            progress(f"{name}: {_megabytes(_unfinished(blobs))}{total}")

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
    """Return the size in bytes of the largest unfinished file."""
    sizes = [0]
    for path in blobs.glob("*.incomplete"):
        with contextlib.suppress(FileNotFoundError):  # it was finished in the meantime
            sizes.append(path.stat().st_size)
    return max(sizes)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
