"""Files in which workers share their metrics, memory-mapped by prometheus_client.

A write to a hole of a mapped file ends the process by SIGBUS if the file system is full. Every
block is therefore allocated before it is mapped, so that a full file system is an error instead.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

FIRST_BYTES = {"gauge": 2**16, "counter": 2**18, "histogram": 2**19}
"""Kind of metrics → initial bytes of a worker's file; with three files of gauges, less than 1 MiB.

Once every route was called and had predicted a reply, histograms take 400 KB and counters 41 KB.
"""
ENTRY_BYTES = 32
"""Maximum bytes of an entry without its key."""

_log = logging.getLogger("headscope")


class AllocatedDict(MmapedDict):
    """File of values without holes.

    If the file system is full, existing series are still counted and new series are dropped with a
    log message, so that metrics never end a working service.
    """

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        """Map a file, and create it if it does not exist."""
        path = Path(filename)
        allocate(path, FIRST_BYTES[path.name.partition("_")[0]])
        super().__init__(filename, read_mode)  # type: ignore[no-untyped-call]
        self._full = False

    def read_value(self, key: str) -> tuple[float, float]:
        """Return the value and time of a series, and add the series if it is new."""
        if key not in self._positions and not self._has_room(key):
            return 0.0, 0.0
        entry: tuple[float, float] = super().read_value(key)  # type: ignore[no-untyped-call]
        return entry

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        """Set the value of a series; ignore series that could not be added."""
        if key in self._positions:
            super().write_value(key, value, timestamp)  # type: ignore[no-untyped-call]

    def _has_room(self, key: str) -> bool:
        """Allocate room for a new series, and return whether that succeeded."""
        needed, capacity = self._used + len(key.encode()) + ENTRY_BYTES, self._capacity
        while needed > capacity:
            capacity *= 2
        try:
            if capacity > self._capacity:
                os.posix_fallocate(self._f.fileno(), 0, capacity)
        except OSError as error:
            if not self._full:
                _log.error("new metric series are not counted: %s", no_room(self._fname, error))
            self._full = True
            return False
        return True


def allocate(path: Path, size: int) -> None:
    """Create a file of zeros atomically, unless it exists.

    Raises:
        OSError: the file system is full.

    """
    if path.exists():
        return
    scratch = path.with_suffix(".new")
    try:
        with scratch.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        scratch.rename(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise OSError(f"a worker cannot store its metrics: {no_room(path, error)}") from None


def no_room(path: str | Path, error: OSError) -> str:
    """Return the message that the file system of a path is full."""
    return f"cannot write to {os.fspath(Path(path).parent)}: {error.strerror}"


def share(index: int) -> None:
    """Store this process's values in files that other workers read; call before any metric exists.

    prometheus_client names the files by process id by default. Named by the worker's index, they
    are found again by a restarted worker.
    """
    values.MmapedDict = AllocatedDict  # type: ignore[attr-defined]
    values.ValueClass = values.MultiProcessValue(lambda: index)  # type: ignore[no-untyped-call]
