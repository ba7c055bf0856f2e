"""Fixtures of the commands: a cache of their own, and a stub of `serve`."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from service.settings import Settings


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE_FOLDER", str(tmp_path / "cache"))


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
