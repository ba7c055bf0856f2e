"""Message of a failed command, and commands in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest


def one_line(capsys: pytest.CaptureFixture[str], command: str) -> str:
    """Return a failed command's only line on standard error after its progress."""
    out, err = capsys.readouterr()
    assert out == ""
    *progress, line = err.splitlines()
    assert all(step.startswith("headscope: ") for step in progress)
    assert line.startswith(f"headscope {command}: ")
    return line


LIGHT = """
import sys
from service.cli import main
code = main(sys.argv[2:])
assert not set(sys.argv[1].split()) & sys.modules.keys()
sys.exit(code)
"""


def run_without(modules: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command, which must not import any of the modules."""
    command = [sys.executable, "-c", LIGHT, modules, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
