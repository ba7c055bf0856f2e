"""The files in which the workers of a service share their metrics, as prometheus_client maps them.

A mapped file with holes ends its process by SIGBUS as soon as one is written to and the file system
is full. So every block is allocated before it is mapped: then a full file system is an error.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

FIRST_BYTES = {"gauge": 2**16, "counter": 2**18, "histogram": 2**19}
"""Of each of a worker's files, of which three are of gauges; together less than a mebibyte.

Once every route was called, and each had predicted a reply, histograms have 400 KB and counters 41.
"""
ENTRY_BYTES = 32
"""The most that an entry takes beside its key."""

_log = logging.getLogger("headscope")


class AllocatedDict(MmapedDict):
    """A file of values without holes.

    Where there is no room for more series, those that it has are still counted, and a line in the
    log says that others are not: metrics are no reason to end a service that answers.
    """

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        """Map a file, after making it if it is not there.

        Raises:
            OSError: there is no room for it.

        """
        path = Path(filename)
        allocate(path, FIRST_BYTES[path.name.partition("_")[0]])
        super().__init__(filename, read_mode)  # type: ignore[no-untyped-call]
        self._full = False

    def read_value(self, key: str) -> tuple[float, float]:
        """The value of a series and its time; a new one gets its place."""
        if key not in self._positions and not self._has_room(key):
            return 0.0, 0.0
        found: tuple[float, float] = super().read_value(key)  # type: ignore[no-untyped-call]
        return found

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        """Set the value of a series that has a place."""
        if key in self._positions:
            super().write_value(key, value, timestamp)  # type: ignore[no-untyped-call]

    def _has_room(self, key: str) -> bool:
        """Whether a new series has a place; allocates the size that the file will then be given."""
        needed, capacity = self._used + len(key.encode()) + ENTRY_BYTES, self._capacity
        while needed > capacity:
            capacity *= 2
        try:
            if capacity > self._capacity:
                os.posix_fallocate(self._f.fileno(), 0, capacity)
        except OSError as error:
            if not self._full:
                _log.error("further metrics are not counted, %s", no_room(self._fname, error))
            self._full = True
            return False
        return True


def allocate(path: Path, size: int) -> None:
    """Make a file of zeros, unless it is there; others see it once it is whole.

    Raises:
        OSError: there is no room for it.

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
        raise OSError(f"a worker cannot keep its metrics, {no_room(path, error)}") from None


def no_room(path: str | Path, error: OSError) -> str:
    """What a full file system is called, with the folder that is on it."""
    return f"{os.fspath(Path(path).parent)} takes no more: {error.strerror}"


def share(index: int) -> None:
    """Keep the values of this process where other workers read them; before any is made.

    prometheus_client names the files by process id unless told otherwise. By index, a worker that
    is started again finds what it had counted.
    """
    values.MmapedDict = AllocatedDict  # type: ignore[attr-defined]
    values.ValueClass = values.MultiProcessValue(lambda: index)  # type: ignore[no-untyped-call]
