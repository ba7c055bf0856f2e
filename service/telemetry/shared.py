"""Metrics of several workers: files in which they share values, and sums over their processes.

prometheus_client maps the files into memory. A write to a hole of a mapped file ends the process by
SIGBUS if the file system is full. Every block is therefore allocated before it is mapped, so that a
full file system is an error instead.

`process_*` are sums over the supervisor and its descendants. Shared memory pages count once.
Processor time covers the supervisor and its workers, including workers that have ended, so it never
decreases. The time of an engine's own process is added when that process ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import values
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.registry import Collector

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


_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


class ServiceProcesses(Collector):
    """Collector of sums over a process and its descendants, named as in `ProcessCollector`."""

    def __init__(self, root: int) -> None:
        self._root = root

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        virtual = resident = open_files = most_files = 0
        for pid in (self._root, *descendants(self._root)):
            with contextlib.suppress(OSError):  # the process has just ended
                resident += _resident_bytes(pid)
                virtual += int(_stat(pid)[20])
                most_files += _most_files(pid)
                open_files += len(list((_PROC / str(pid) / "fd").iterdir()))
        for name, what, value in (
            ("virtual_memory_bytes", "Virtual memory.", virtual),
            ("resident_memory_bytes", "Resident memory; a shared page counts once.", resident),
            (
                "start_time_seconds",
                "Start of the service as Unix time.",
                self._started(),
            ),
            ("open_fds", "Open file descriptors.", open_files),
            ("max_fds", "Maximum number of open file descriptors of all processes.", most_files),
        ):
            yield GaugeMetricFamily(f"process_{name}", what, value)
        seconds = self._cpu_seconds()
        yield CounterMetricFamily("process_cpu_seconds", "Processor time.", seconds)

    def _started(self) -> float:
        boot = (_PROC / "stat").read_text(encoding="ascii").partition("btime ")[2].split()[0]
        return int(boot) + int(_stat(self._root)[19]) / _TICKS

    def _cpu_seconds(self) -> float:
        while True:
            own, ended = _cpu_ticks(self._root)
            with contextlib.suppress(OSError):
                running = sum(sum(_cpu_ticks(pid)) for pid in children(self._root))
                if _cpu_ticks(self._root)[1] == ended:
                    return (own + ended + running) / _TICKS
            # otherwise a child has just ended, and its time now counts in the root's


def children(pid: int) -> list[int]:
    """Return the ids of a process's children that have not been waited for."""
    tasks = (_PROC / str(pid) / "task").iterdir()
    lines = [(task / "children").read_text(encoding="ascii") for task in tasks]
    return [int(child) for line in lines for child in line.split()]


def descendants(pid: int) -> list[int]:
    """Return the ids of all descendants of a process."""
    pids = []
    with contextlib.suppress(OSError):
        for child in children(pid):
            pids += [child, *descendants(child)]
    return pids


def _stat(pid: int) -> list[str]:
    """Return the fields of proc_pid_stat(5) from the third on, which has index 0."""
    text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()


def _cpu_ticks(pid: int) -> tuple[int, int]:
    """Return the clock ticks of a process, and the ticks of its ended children."""
    user, system, ended_user, ended_system = map(int, _stat(pid)[11:15])
    return user + system, ended_user + ended_system


def _resident_bytes(pid: int) -> int:
    """Return the proportional set size of a process in bytes."""
    text = (_PROC / str(pid) / "smaps_rollup").read_text(encoding="utf-8")
    return 1024 * int(text.partition("\nPss:")[2].split()[0])


def _most_files(pid: int) -> int:
    text = (_PROC / str(pid) / "limits").read_text(encoding="ascii")
    return int(text.partition("Max open files")[2].split()[0])
