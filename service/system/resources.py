"""Memory and processor time of a process: what the system's libraries are told of both.

glibc's allocator raises its own threshold for large blocks to the largest that was ever freed, up
to 32 MiB; from then on the buffers of batches and replies lie among small objects and leave holes.
See mallopt(3), and docs/decisions/0012 for what that costs. OpenMP's threads spin while they wait
for each other, for which there is no core beside the service's own engine.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
