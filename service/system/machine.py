"""What the machine has: its processor, its memory, a GPU's driver."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
MEMORY_INFO = Path("/proc/meminfo")
CONTROL_GROUP = Path("/sys/fs/cgroup")
GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""NVIDIA's driver, and that of Windows for a Linux inside of it."""


def processor_name() -> str:
    """The processor's name where Linux tells it, and its architecture's elsewhere."""
    with contextlib.suppress(OSError):
        for line in CPU_INFO.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()


def available_memory() -> int | None:
    """Bytes that processes can still take: the system's, or less where a container has a limit.

    None where Linux tells neither.
    """
    found = []
    with contextlib.suppress(OSError):
        lines = MEMORY_INFO.read_text(encoding="ascii").splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    for limit, usage, inactive in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            free = int((CONTROL_GROUP / limit).read_text()) - int(
                (CONTROL_GROUP / usage).read_text()
            )
            statistics = (CONTROL_GROUP / limit).with_name("memory.stat").read_text().split()
            found.append(free + int(statistics[statistics.index(inactive) + 1]))
    return min(found, default=None)


def may_have_gpu() -> bool:
    """Whether a driver is there through which CUDA could find a device."""
    return any(device.exists() for device in GPU_DEVICES)
