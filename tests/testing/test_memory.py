"""Memory of one process, and of a process with its descendants, as the kernel counts it."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from testing.memory import family_bytes, forget_peak, memory_bytes


def test_resident_memory_is_psutils() -> None:
    assert memory_bytes("self", "VmRSS") == pytest.approx(
        psutil.Process().memory_info().rss, rel=0.05
    )


def test_the_peak_counts_anew() -> None:
    """In a process of its own, whose memory no other test has filled."""
    code = "import sys; x = b'x' * 2**26; del x; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        most = memory_bytes(process.pid, "VmHWM")
        assert most > 2**26
        forget_peak(process.pid)
        assert memory_bytes(process.pid, "VmHWM") < most - 2**25


def test_a_family_is_all_descendants() -> None:
    code = "import sys; x = b'x' * 2**25; print(flush=True); sys.stdin.read()"
    before = family_bytes(os.getpid(), "VmRSS")
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert family_bytes(os.getpid(), "VmRSS") > before + 2**25
