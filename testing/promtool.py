"""Prometheus and promtool: the system's, or Debian's packages unpacked in `.prometheus`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

UNPACKED = Path(__file__).resolve().parents[1] / ".prometheus" / "usr" / "bin"
MISSING = "there is no {}: tests/deploy/prometheus/install_prometheus gets Debian's"


def found(name: str) -> str | None:
    """Return the path of `prometheus` or `promtool`; None if it is not installed."""
    return shutil.which(name) or shutil.which(name, path=UNPACKED)


def promtool(*arguments: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run promtool with `text` on its standard input.

    Raises:
        FileNotFoundError: promtool is not installed.

    """
    program = found("promtool")
    if program is None:
        raise FileNotFoundError(MISSING.format("promtool"))
    return subprocess.run(
        [program, *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
