"""`headscope serve`: its settings, and artifacts that it refuses."""

from __future__ import annotations

import pytest

from model.artifact.manifest import Artifact
from service.cli import main
from service.settings import Settings
from tests.service.cli.said import one_line


def test_serve_gets_the_artifact_and_the_settings(
    artifact: Artifact, served: list[tuple[Settings, Artifact]]
) -> None:
    assert main(["serve", "--artifact", str(artifact.folder), "--port", "7"]) == 0
    ((settings, found),) = served
    assert settings.port == 7
    assert found == artifact


@pytest.mark.parametrize("command", ["serve", "export", "fetch"])
def test_a_misspelt_variable_is_one_line_too(
    command: str,
    served: list[tuple[Settings, Artifact]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HEADSCOPE_API_KEY", "s3cret")
    assert main([command]) == 2
    line = one_line(capsys, command)
    assert line.endswith("HEADSCOPE_API_KEY is not a setting: did you mean HEADSCOPE_API_KEYS?")
    assert served == []
