"""Properties of the machine: threads, memory, GPU driver."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MEMORY_INFO = Path("/proc/meminfo")
CONTROL_GROUP = Path("/sys/fs/cgroup")
GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Device files of NVIDIA's driver, and of Windows' driver inside WSL."""


def threads_of_worker(threads: int | None, workers: int) -> int:
    """Return the threads of a worker: the setting, or the worker's share of the cores."""
    return threads or max(1, len(os.sched_getaffinity(0)) // workers)


def available_memory() -> int | None:
    """Return the bytes available to processes, by the system or a lower limit of the container.

    None if Linux reports neither.
    """
    sizes = []
    with contextlib.suppress(OSError):
        lines = MEMORY_INFO.read_text(encoding="ascii").splitlines()
        sizes += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    for limit, usage, inactive in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        with contextlib.suppress(OSError, ValueError):  # "max" means no limit
            free = int((CONTROL_GROUP / limit).read_text()) - int(
                (CONTROL_GROUP / usage).read_text()
            )
            statistics = (CONTROL_GROUP / limit).with_name("memory.stat").read_text().split()
            sizes.append(free + int(statistics[statistics.index(inactive) + 1]))
    return min(sizes, default=None)


def may_have_gpu() -> bool:
    """Return whether a GPU driver is present through which CUDA could find a device."""
    return any(device.exists() for device in GPU_DEVICES)
