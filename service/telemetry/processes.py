"""`process_*` metrics of a service with workers: sums over the supervisor and its descendants.

Shared memory pages count once. Processor time covers the supervisor and its workers, including
workers that have ended, so it never decreases. The time of an engine's own process is added when
that process ends.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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
