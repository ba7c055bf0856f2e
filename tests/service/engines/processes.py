"""State of processes."""

from __future__ import annotations

import psutil


def gone(pid: int) -> bool:
    """Return whether a process has ended; it may be a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
