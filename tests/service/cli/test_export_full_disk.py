"""An export onto a full disk fails in one line, and leaves nothing."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest

from model.artifact.manifest import ENCODER_GRAPH, Artifact
from service.cli import main

Disk = Callable[[str], Path]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Return `disk("1m")`, which makes an empty file system of that size."""
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
    [("256k", "tokenizer.json"), ("1m", "weights.safetensors"), ("17752k", "encoder.onnx")],
)
def test_a_full_disk(
    disk: Disk,
    artifact: Artifact,
    small_checkpoint: Path,
    tmp_path: Path,
    size: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Three libraries write, each with its own exceptions; the graph is not traced again."""
    copy = shutil.copytree(artifact.folder, tmp_path / "artifact")  # others may link its files
    graph = onnx.load(copy / ENCODER_GRAPH)
    monkeypatch.setattr("model.export.exporter.export_encoder", lambda *_, **__: graph)
    folder = disk(size)
    out = folder / "out"
    assert main(["export", "--model", str(small_checkpoint), "--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    *steps, line = printed.err.splitlines()
    assert all(step.startswith("headscope: ") for step in steps)
    assert line.startswith(f"headscope export: {folder}/")
    assert f"/{name} cannot be written: " in line
    assert "No space left on device" in line
    assert list(folder.iterdir()) == []
