"""An artifact is moved to its place complete and verified, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import model.numerics.comparison
from model.artifact.manifest import Artifact, load_artifact
from model.artifact.verification import VerificationRecord
from model.errors import ArtifactError
from model.export import exporter
from model.export.placement import check_free, move, place
from model.numerics.comparison import Tolerance

Build = Callable[[Path], None]


@pytest.fixture
def build(tiny_artifact: Artifact) -> Build:
    """Copy graphs that were exported before."""

    def copy(folder: Path) -> None:
        shutil.copytree(tiny_artifact.folder, folder, dirs_exist_ok=True)

    return copy


def as_it_was(artifact: Artifact) -> VerificationRecord:
    return artifact.manifest.verification


def test_an_artifact_that_fails_its_verification_comes_to_its_place(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = dict.fromkeys(("hidden", "attention", "values", "pooled"), Tolerance(0.0, 0.0, 0.0))
    monkeypatch.setitem(model.numerics.comparison.TOLERANCES, "fp32", nothing)
    reported: list[str] = []

    def verify(artifact: Artifact) -> VerificationRecord:
        return exporter._verify(artifact, "cpu", reported.append)

    (tmp_path / "out").mkdir()  # an empty folder counts as none
    exported = place(tmp_path / "out", build, verify)
    assert not exported.verification.passed
    assert exported.verification.failed is not None
    assert reported[-1] == f"verification FAILED: {exported.verification.failed}"
    assert " tensors, first hidden state 0: max abs diff " in reported[-1]
    assert load_artifact(tmp_path / "out") == exported.artifact
    assert exported.artifact.manifest.verification == exported.verification


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").touch()
        raise ArtifactError("no room")

    with pytest.raises(ArtifactError, match="no room"):
        place(tmp_path / "below" / "out", build, as_it_was)
    assert list((tmp_path / "below").iterdir()) == []


def test_a_place_that_is_taken_meanwhile(build: Build, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def slow(folder: Path) -> None:
        build(folder)
        out.mkdir()
        (out / "other").touch()

    with pytest.raises(ArtifactError, match="was taken while this export ran"):
        place(out, slow, as_it_was)
    assert list(tmp_path.rglob("*")) == [out, out / "other"]
    with pytest.raises(ArtifactError, match="exists and is not an empty folder"):
        place(out, build, as_it_was)


def test_a_moved_artifact_is_the_same(tiny_artifact: Artifact, tmp_path: Path) -> None:
    copied = load_artifact(Path(shutil.copytree(tiny_artifact.folder, tmp_path / "copy")))
    moved = move(copied, tmp_path / "out")
    assert moved == load_artifact(tmp_path / "out")
    assert moved.sha256 == tiny_artifact.sha256
    check_free(tmp_path / "copy")
    with pytest.raises(ArtifactError, match="is not an empty folder"):
        check_free(tmp_path / "out")
