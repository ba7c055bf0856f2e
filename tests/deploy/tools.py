"""Programs of `make .venv-deploy/.installed`, which render and check what is deployed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv-deploy" / "bin"


def run(program: str, *arguments: str, stdin: str = "", **variables: str) -> str:
    """Run a program and return its output; skip the test if the program is not installed.

    Raises:
        AssertionError: it fails; what it wrote on standard error.

    """
    if not (BIN / program).exists():
        pytest.skip(f"{program} is not installed: make .venv-deploy/.installed")
    found = subprocess.run(
        [BIN / program, *arguments],
        input=stdin,
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout + found.stderr
