"""Which artifact is opened, by what the settings and the environment name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from model.artifact.manifest import Artifact, load_artifact
from model.export.exporter import Exported
from service.cli import main


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
    monkeypatch.setenv("HEADSCOPE_CACHE_FOLDER", str(tmp_path))
    monkeypatch.setenv("HEADSCOPE_ARTIFACT", str(artifact.folder))
    assert main(["export", "--model", str(small_checkpoint)]) == 0
    found = Path(capsys.readouterr().out.strip())
    assert found.parent == tmp_path / "artifacts"
