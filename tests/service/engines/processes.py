"""Whether a process still runs."""

from __future__ import annotations

import psutil


def gone(pid: int) -> bool:
    """It has ended, though perhaps nobody has taken note of its end yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
