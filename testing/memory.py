"""Memory of processes, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import psutil

MEBIBYTE = 2**20


def memory_bytes(process: int | Literal["self"], name: Literal["VmRSS", "VmHWM"]) -> int:
    """Return a process's resident memory in bytes: `VmRSS` is the current, `VmHWM` the peak."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return 1024 * int(status.partition(f"{name}:")[2].split()[0])


def family_bytes(process: int, name: Literal["VmRSS", "VmHWM"]) -> int:
    """Return the sum of `memory_bytes` over a process and all of its descendants."""
    return sum(memory_bytes(member, name) for member in family(process))


def family(process: int) -> list[int]:
    """Return the ids of a process and all of its descendants."""
    return [process, *(child.pid for child in psutil.Process(process).children(recursive=True))]


def forget_peak(process: int) -> None:
    """Reset a process's `VmHWM` to its current memory."""
    Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")
