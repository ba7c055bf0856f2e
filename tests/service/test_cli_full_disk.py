"""An export onto a disk that is full is one line, and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Disk = Callable[[str], Path]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """`disk("1m")`: an empty file system of that size."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        folder = tmp_path / size
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount here")
        if done.returncode:
            pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "name"),
    [("256k", "tokenizer.json"), ("1m", "weights.safetensors"), ("19m", "encoder.onnx")],
)
def test_a_full_disk(disk: Disk, small_checkpoint: Path, size: str, name: str) -> None:
    """Three libraries write, each with exceptions of its own."""
    folder = disk(size)
    out = folder / "out"
    done = subprocess.run(
        [sys.executable, "-m", "service", "export", "--model", small_checkpoint, "--out", out],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    *steps, line = done.stderr.splitlines()
    assert all(step.startswith("headscope: ") for step in steps)
    assert line.startswith(f"headscope export: {folder}/")
    assert f"/{name} cannot be written: " in line
    assert "No space left on device" in line
    assert list(folder.iterdir()) == []
