"""Fixtures of the commands: a cache of their own, and a stub of `serve`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact, load_artifact
from service.settings import Settings


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE_FOLDER", str(tmp_path / "cache"))


@dataclass
class Exporter:
    """Calls of the exporter, which copies an artifact."""

    artifact: Artifact
    folders: list[Path] = field(default_factory=list)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """Model, precision and device of each call."""

    def __call__(
        self, _: Path, out: Path, model: str, precision: str, __: object, device: str
    ) -> Artifact:
        self.asked.append((model, precision, device))
        self.folders.append(out)
        shutil.copytree(self.artifact.folder, out)
        return load_artifact(out)


@pytest.fixture
def exporter(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> Exporter:
    """Replace the exporter by copies of the artifact, and return its calls."""
    found = Exporter(artifact)
    monkeypatch.setattr("model.export.exporter.export", found)
    return found


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, Artifact]]:
    """Return the arguments with which the stub of `serve` was called."""
    calls: list[tuple[Settings, Artifact]] = []

    def serve(settings: Settings, artifacts: list[Artifact]) -> int:
        (artifact,) = artifacts
        calls.append((settings, artifact))
        return 0

    monkeypatch.setattr("service.process.single.serve", serve)
    return calls
