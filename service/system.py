"""Settings of the system's libraries in each process of the service.

glibc's allocator raises its own threshold for large blocks to the largest that was ever freed, up
to 32 MiB; from then on the buffers of batches and replies lie among small objects and leave holes.
See mallopt(3), and docs/decisions/0012 for what that costs. OpenMP's threads spin while they wait
for each other, for which there is no core beside the service's own engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import platform
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_log = logging.getLogger("headscope")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Names of glibc's parameters, from malloc.h."""
ALLOCATOR = {
    M_MMAP_THRESHOLD: 2**18,
    M_TRIM_THRESHOLD: 2**20,
    M_ARENA_MAX: 2,
}
OPENMP = {"OMP_WAIT_POLICY": "PASSIVE"}
CPU_INFO = Path("/proc/cpuinfo")
MEMORY_INFO = Path("/proc/meminfo")
CONTROL_GROUP = Path("/sys/fs/cgroup")
GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""NVIDIA's driver, and that of Windows for a Linux inside of it."""
COMPUTING_NICENESS = 5
"""Of threads that compute: the event loop goes first when it has something to do, and where cores
are free it costs them nothing."""


def settle_allocator() -> bool:
    """Have large blocks go back to the system as they are freed; at the start of a process.

    Returns:
        Whether that was done: not where the C library is another, nor where the environment has
        settings of its own (`MALLOC_…`, `GLIBC_TUNABLES`).

    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return [mallopt(name, value) for name, value in ALLOCATOR.items()] == [1] * len(ALLOCATOR)


def lower_priority() -> None:
    """Let the calling thread, and those that it starts, give way to the event loop's.

    On Linux a thread has a niceness of its own; nobody needs a privilege to raise it. Where a
    sandbox forbids it all the same, the log says so.
    """
    thread = threading.get_native_id()
    try:
        niceness = os.getpriority(os.PRIO_PROCESS, os.getpid()) + COMPUTING_NICENESS
        os.setpriority(os.PRIO_PROCESS, thread, min(niceness, 19))
    except OSError as error:
        _log.warning("a thread that computes keeps the event loop's priority: %s", error)


def in_lower_priority(call: Callable[[], T]) -> T:
    """The result of a call of lower priority, as are threads and processes that it starts."""
    with ThreadPoolExecutor(1, "starting", lower_priority) as thread:
        return thread.submit(call).result()


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


def release_memory() -> None:
    """Give pages that glibc's allocator has free back to the system; see malloc_trim(3)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def tokenize_in_the_calling_thread() -> None:
    """Keep the tokenizers library from threads of its own, which know no priority."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def rest_idle_threads() -> None:
    """Have OpenMP's threads sleep while they wait, unless the environment says otherwise.

    To be called before PyTorch is loaded. Where its threads wait busily and other work wants their
    cores, each small layer takes milliseconds.
    """
    os.environ.update(torch_environment())


def torch_environment() -> dict[str, str]:
    """The environment of a PyTorch process: ours, where OpenMP's threads sleep by default."""
    return OPENMP | os.environ
