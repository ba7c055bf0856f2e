"""Memory of processes, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import psutil

MEBIBYTE = 2**20


def memory_bytes(process: int | Literal["self"], name: Literal["VmRSS", "VmHWM"]) -> int:
    """Resident memory of one process: `VmRSS` now, `VmHWM` at its highest so far."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return 1024 * int(status.partition(f"{name}:")[2].split()[0])


def family_bytes(process: int, name: Literal["VmRSS", "VmHWM"]) -> int:
    """The sum over a process and all of its descendants."""
    root = psutil.Process(process)
    return sum(memory_bytes(one.pid, name) for one in (root, *root.children(recursive=True)))


def forget_peak(process: int) -> None:
    """Let `VmHWM` count from now on."""
    Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")
