"""Which artifact is opened, by what the settings and the environment name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from model.artifact.manifest import Artifact, load_artifact
from model.errors import ArtifactError
from model.export.exporter import Exported
from service.artifacts import open_artifact
from service.cli import main
from service.settings import Settings


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE_FOLDER", str(tmp_path))


def test_an_export_is_of_the_model_whatever_artifact_the_environment_names(
    artifact: Artifact,
    small_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def export(
        checkpoint: Path, out: Path, model: str, precision: str, progress: Any, device: str
    ) -> Exported:
        shutil.copytree(artifact.folder, out)
        return Exported(load_artifact(out), artifact.manifest.verification)

    monkeypatch.setattr("model.export.exporter.export", export)
    monkeypatch.setenv("HEADSCOPE_ARTIFACT", str(artifact.folder))
    assert main(["export", "--model", str(small_checkpoint)]) == 0
    found = Path(capsys.readouterr().out.strip())
    assert found.parent == tmp_path / "artifacts"


def test_another_process_was_faster_with_the_same_export(
    artifact: Artifact, small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(
        checkpoint: Path, out: Path, model: str, precision: str, progress: Any, device: str
    ) -> Exported:
        shutil.copytree(artifact.folder, out)
        raise ArtifactError(f"{out} was taken while this export ran")

    monkeypatch.setattr("model.export.exporter.export", export)
    found = open_artifact(Settings(model=str(small_checkpoint)))
    assert found.sha256 == artifact.sha256
