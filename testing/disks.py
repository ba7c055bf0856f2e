"""Small file systems, to be filled."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def small_disk(folder: Path, size: int | str) -> Iterator[str]:
    """Mount an empty file system of a size, such as `4m`, at a folder while the block runs.

    Yields:
        Why it cannot be mounted here; empty where it is.

    """
    problem = mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield problem
    finally:
        if not problem:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mount(*arguments: str) -> str:
    """Run mount; return why it failed, or nothing."""
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return str(error)
    return done.stderr.strip() or "mount failed" if done.returncode else ""
