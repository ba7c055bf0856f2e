"""Parameters of memory allocation and thread scheduling in a process.

glibc's allocator raises its threshold for large blocks to the largest block ever freed, up to
32 MiB. From then on, buffers of batches and replies are placed among small objects and leave holes.
See mallopt(3), and docs/decisions/0012-freed-memory-goes-back.md for the cost. OpenMP's threads
spin while they wait for each other, which takes cores from the service's engine.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
_log = logging.getLogger("headscope")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Numbers of glibc's parameters, from malloc.h."""
ALLOCATOR = {
    M_MMAP_THRESHOLD: 2**18,
    M_TRIM_THRESHOLD: 2**20,
    M_ARENA_MAX: 2,
}
SWITCH_SECONDS = 0.001
"""Time after which a thread gives up Python's global lock to another that waits. With Python's own
5 ms, the event loop waits so long in each round while other threads tokenise long texts."""
START_SWITCH_SECONDS = 0.0002
"""`SWITCH_SECONDS` of a start: a thread that reads files waits up to this time, after each system
call, for the thread that imports."""
GARBAGE_THRESHOLDS = gc.get_threshold()
START_OBJECTS = 100_000
"""Number of new objects after which garbage is collected during a start."""
OPENMP = {"OMP_WAIT_POLICY": "PASSIVE"}
COMPUTING_NICENESS = 5
"""Niceness of threads that compute, so that the event loop runs first; it costs nothing on free
cores."""


def settle_allocator() -> bool:
    """Make the allocator return freed large blocks to the system; call at the start of a process.

    Returns:
        Whether the parameters were set. They are not if the C library is not glibc, or if the
        environment configures it (`MALLOC_…`, `GLIBC_TUNABLES`).

    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return [mallopt(name, value) for name, value in ALLOCATOR.items()] == [1] * len(ALLOCATOR)


def begin_start() -> None:
    """Take turns of `START_SWITCH_SECONDS`, and collect garbage rarely: a start's objects stay."""
    sys.setswitchinterval(START_SWITCH_SECONDS)
    gc.set_threshold(START_OBJECTS)


def end_start() -> None:
    """Take turns of `SWITCH_SECONDS`, and collect garbage as usual, without the start's objects.

    Traversing them would stop every request for 40 ms now and then.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def lower_priority() -> None:
    """Lower the priority of the calling thread and its child threads below the event loop's.

    On Linux each thread has its own niceness, which may be raised without privileges. If a sandbox
    forbids it, log a warning.
    """
    thread = threading.get_native_id()
    try:
        niceness = os.getpriority(os.PRIO_PROCESS, os.getpid()) + COMPUTING_NICENESS
        os.setpriority(os.PRIO_PROCESS, thread, min(niceness, 19))
    except OSError as error:
        _log.warning("cannot lower the priority of a thread that computes: %s", error)


def in_lower_priority(call: Callable[[], T]) -> T:
    """Run a call at lower priority, which its threads and processes inherit; return its result."""
    with ThreadPoolExecutor(1, "starting", lower_priority) as thread:
        return thread.submit(call).result()


def release_memory() -> None:
    """Return free pages of glibc's allocator to the system; see malloc_trim(3)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def tokenize_in_the_calling_thread() -> None:
    """Disable the thread pool of the tokenizers library, as its threads ignore the priority."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def rest_idle_threads() -> None:
    """Make OpenMP's threads sleep while they wait, unless the environment configures them.

    Call before PyTorch is loaded. If its threads spin while other work needs their cores, each
    small layer takes milliseconds.
    """
    os.environ.update(torch_environment())


def torch_environment() -> dict[str, str]:
    """Return the environment of a PyTorch process: this one, with OpenMP's threads sleeping."""
    return OPENMP | os.environ
