"""Meaning of SIGHUP: the terminal is closed, or the file of settings has to be read again."""

from __future__ import annotations

import os

TERMINAL = "/dev/tty"


class HangUp:
    """Check of whether the terminal in which the service was started is closed."""

    def __init__(self) -> None:
        self._had_terminal = _opens()

    def lost_terminal(self) -> bool:
        """Return whether the terminal is closed; False for a service that started without one."""
        return self._had_terminal and not _opens()


def _opens() -> bool:
    """Return whether the process has a controlling terminal; see tty(4)."""
    try:
        os.close(os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
