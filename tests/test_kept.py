"""Exports that a run keeps for the next are whole, and match the present code."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from model.artifact.manifest import ENCODER_GRAPH, Artifact, load_artifact
from tests import kept
from tests.kept import Kept


@pytest.fixture
def artifact(exported: Callable[..., Artifact], tiny_checkpoint: Path) -> Artifact:
    return exported(tiny_checkpoint, "tiny")


def test_an_export_is_copied_while_it_is_whole(artifact: Artifact, tmp_path: Path) -> None:
    folder = Kept(tmp_path / "kept")
    assert not folder.copy("key", tmp_path / "a")
    folder.keep("key", artifact.folder)
    assert folder.copy("key", tmp_path / "a")
    assert load_artifact(tmp_path / "a").sha256 == artifact.sha256
    (tmp_path / "kept" / "key" / ENCODER_GRAPH).write_bytes(b"damaged")
    assert not folder.copy("key", tmp_path / "b")
    assert not (tmp_path / "b").exists()
    folder.keep("key", artifact.folder)
    assert folder.copy("key", tmp_path / "b")


@pytest.mark.parametrize("what", ["", "checkpoint", "source", "library", "processor", "precision"])
def test_whatever_decides_an_export_names_it(
    what: str, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Kept(tmp_path)
    before = folder.key(tiny_checkpoint, "tiny", "fp32")
    checkpoint = Path(shutil.copytree(tiny_checkpoint, tmp_path / "copy"))
    match what:
        case "checkpoint":
            config = checkpoint / "config.json"
            config.write_text(config.read_text() + " ")
        case "source":
            monkeypatch.setattr("model.artifact.cache.exporter_version", lambda: "another")
        case "library":
            monkeypatch.setattr(kept, "runtimes", lambda: ["onnxruntime 77"])
        case "processor":
            monkeypatch.setattr(kept, "processor_name", lambda: "another")
    precision = "bf16" if what == "precision" else "fp32"
    assert (folder.key(checkpoint, "tiny", precision) == before) == (not what)


def test_what_was_used_last_stays(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(file.stat().st_size for file in artifact.folder.iterdir())
    monkeypatch.setattr(kept, "MOST_BYTES", 2 * size)
    folder = Kept(tmp_path / "kept")
    for age, key in enumerate("abcd"):
        folder.keep(key, artifact.folder)
        used = (tmp_path / "kept" / key).stat().st_mtime - (4 - age) * kept.IN_USE_SECONDS
        os.utime(tmp_path / "kept" / key, (used, used))
    assert folder.copy("c", tmp_path / "out")
    folder.keep("e", artifact.folder)
    assert {one.name for one in (tmp_path / "kept").iterdir()} == {"c", "e"}
    os.utime(tmp_path / "kept" / "c", (0, 0))
    monkeypatch.setattr(kept, "MOST_BYTES", 9 * size)
    folder.keep("f", artifact.folder)
    assert {one.name for one in (tmp_path / "kept").iterdir()} == {"e", "f"}
