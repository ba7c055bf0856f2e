"""Settings of the system's libraries and of the garbage collector, as they report them."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service import cli
from service.system import resources

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the C library here is not glibc"
)
SCRIPT = """
import ctypes, sys
from service.system import resources
from tests.service.system.test_resources import own_blocks, LIBC

settled = resources.settle_allocator() if sys.argv[1] == "settled" else None
LIBC.free(LIBC.malloc(16 * 2**20))  # from now on glibc by itself keeps such blocks in its heap
before, block = own_blocks(), LIBC.malloc(2 * 2**20)
print(settled, own_blocks() - before)
"""
LIBC = ctypes.CDLL(None)
LIBC.malloc.restype, LIBC.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
LIBC.free.restype, LIBC.free.argtypes = None, [ctypes.c_void_p]


class Mallinfo2(ctypes.Structure):
    """Structure `mallinfo2` of malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def own_blocks() -> int:
    """Return the number of blocks that malloc requested from the system one by one."""
    LIBC.mallinfo2.restype = Mallinfo2
    return int(LIBC.mallinfo2().hblks)


def said(how: str, **environment: str) -> str:
    known = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how],
        capture_output=True,
        check=True,
        text=True,
        env=known | environment,
        cwd=Path(__file__).resolve().parents[3],
        timeout=60,
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_a_large_block_after_a_larger_one_was_freed() -> None:
    assert said("left alone") == "None 0"
    assert said("settled") == "True 1"


@pytest.mark.slow
def test_whoever_has_set_it_is_left_alone() -> None:
    assert said("settled", MALLOC_ARENA_MAX="4") == "False 0"


def test_serving_settles_it_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class TaskResult(Exception):
        pass

    def settle() -> bool:
        raise TaskResult

    monkeypatch.setattr(resources, "settle_allocator", settle)
    with pytest.raises(TaskResult):
        cli.main(["serve", "--port", "1"])


def test_what_starts_in_lower_priority_stays_there_and_nothing_else() -> None:
    def started() -> tuple[int, int, int]:
        """Return the niceness of the calling thread, of a new thread, and of a new process."""
        with ThreadPoolExecutor(1) as threads:
            thread = threads.submit(niceness).result()
        program = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"
        process = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
        return niceness(), thread, int(process.stdout)

    own = niceness()
    expected = min(own + resources.COMPUTING_NICENESS, 19)
    assert resources.in_lower_priority(started) == (expected, expected, expected)
    assert niceness() == own


def test_where_priorities_cannot_be_lowered_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", forbidden)
    assert resources.in_lower_priority(lambda: 3) == 3
    assert "cannot lower the priority" in caplog.text


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_freed_memory_goes_back_to_the_system() -> None:
    """The blocks are too small for the system's own, and some between them are kept."""
    blocks = [LIBC.malloc(2**15) for _ in range(4000)]
    for block in blocks:
        ctypes.memset(block, 1, 2**15)
    kept = blocks[::100]
    for block in set(blocks) - set(kept):
        LIBC.free(block)
    before = resident_bytes()
    resources.release_memory()
    assert resident_bytes() <= before - 2**26 or before < 2**27
    for block in kept:
        LIBC.free(block)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("own", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_idle_threads_of_openmp_rest(
    own: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY")
    if own is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", own)
    resources.rest_idle_threads()
    assert os.environ["OMP_WAIT_POLICY"] == expected


def test_garbage_is_collected_rarely_during_a_start() -> None:
    before, seconds = gc.get_threshold(), sys.getswitchinterval()
    usual = resources.GARBAGE_THRESHOLDS
    try:
        resources.begin_start()
        assert gc.get_threshold()[0] == resources.START_OBJECTS > 100 * usual[0]
        assert sys.getswitchinterval() == pytest.approx(resources.START_SWITCH_SECONDS)
        resources.end_start()
        assert sys.getswitchinterval() == pytest.approx(resources.SWITCH_SECONDS)
        assert gc.get_threshold() == usual
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
        sys.setswitchinterval(seconds)
