"""Models that a service cannot start with, and the end of those that have started."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.app import create_app
from service.errors import EngineUnavailable
from service.settings import Settings
from tests.service.harness import GatedEngine
from tests.service.several import variant

FAKE = Settings(engine="fake")


def test_one_that_cannot_start_ends_those_that_have(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = GatedEngine()
    engine.let_through()
    engines = iter([engine])

    def start(*_: object) -> GatedEngine:
        if found := next(engines, None):
            return found
        raise EngineUnavailable("no such device")

    monkeypatch.setattr("service.models.engine_start.OnnxEngine", start)
    with pytest.raises(EngineUnavailable, match="no such device"):
        create_app(Settings(), [variant(artifact, name, 8) for name in "ab"])
    assert engine.closed


def test_two_of_one_name_are_refused(artifact: Artifact) -> None:
    with pytest.raises(ValueError, match="is to be served 2 times"):
        create_app(FAKE, [artifact, artifact])


@pytest.mark.parametrize(
    ("files", "settings", "says"),
    [
        ([], {}, "holds no model"),
        (["a/manifest.json"], {"pinned": ("b",)}, "--pinned b: the repository has no such model"),
        (["a/manifest.json"], {"pinned": ("a@2",)}, "a has no such version"),
        (None, {}, "is not a folder"),
    ],
)
def test_a_repository_that_cannot_be_served(
    tmp_path: Path, files: list[str] | None, settings: dict[str, Any], says: str
) -> None:
    root = tmp_path / "models"
    for name in files or []:
        (root / name).parent.mkdir(parents=True)
        (root / name).touch()
    if files is not None:
        root.mkdir(exist_ok=True)
    with pytest.raises(ValueError, match=re.escape(says)):
        create_app(Settings(engine="fake", models=root, **settings), [])


def test_pinned_models_need_a_repository() -> None:
    with pytest.raises(ValueError, match="give its folder by --models"):
        create_app(Settings(engine="fake", pinned=("a",)), [])
