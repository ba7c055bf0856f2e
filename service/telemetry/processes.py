"""`process_*` metrics of a service of several processes: its supervisor, and all below it.

A page that several of them share counts once. Processor time is that of the supervisor and its
workers, also of those that have ended, so it never falls; an engine's own process is added to it
when it ends.
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
    """Sums over a process and its descendants, named like `ProcessCollector`'s."""

    def __init__(self, root: int) -> None:
        self._root = root

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        virtual = resident = open_files = most_files = 0
        for pid in (self._root, *descendants(self._root)):
            with contextlib.suppress(OSError):  # it has just ended
                resident += _resident_bytes(pid)
                virtual += int(_stat(pid)[20])
                most_files += _most_files(pid)
                open_files += len(list((_PROC / str(pid) / "fd").iterdir()))
        for name, what, value in (
            ("virtual_memory_bytes", "Virtual memory.", virtual),
            ("resident_memory_bytes", "Resident memory; a shared page counts once.", resident),
            ("start_time_seconds", "When the service started, since the epoch.", self._started()),
            ("open_fds", "Open file descriptors.", open_files),
            ("max_fds", "Most open file descriptors that all processes may have.", most_files),
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
            # else one has just ended: its time is among the root's now


def children(pid: int) -> list[int]:
    """The processes that any thread of a process has started and not yet waited for."""
    tasks = (_PROC / str(pid) / "task").iterdir()
    lines = [(task / "children").read_text(encoding="ascii") for task in tasks]
    return [int(child) for line in lines for child in line.split()]


def descendants(pid: int) -> list[int]:
    """All processes below a process."""
    found = []
    with contextlib.suppress(OSError):
        for child in children(pid):
            found += [child, *descendants(child)]
    return found


def _stat(pid: int) -> list[str]:
    """proc_pid_stat(5) from its third field on, which is number 0 here."""
    text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()


def _cpu_ticks(pid: int) -> tuple[int, int]:
    """A process's own ticks, and those of its children that have ended."""
    user, system, ended_user, ended_system = map(int, _stat(pid)[11:15])
    return user + system, ended_user + ended_system


def _resident_bytes(pid: int) -> int:
    """The process's proportional share of every resident page."""
    text = (_PROC / str(pid) / "smaps_rollup").read_text(encoding="utf-8")
    return 1024 * int(text.partition("\nPss:")[2].split()[0])


def _most_files(pid: int) -> int:
    text = (_PROC / str(pid) / "limits").read_text(encoding="ascii")
    return int(text.partition("Max open files")[2].split()[0])
