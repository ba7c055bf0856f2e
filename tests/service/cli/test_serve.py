"""`headscope serve`: its settings, and artifacts that it refuses."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from model.artifact.manifest import ENCODER_DATA, FILES, MANIFEST, WEIGHTS, Artifact
from service.cli import main
from service.settings import Settings
from tests.service.cli.said import damage, one_line


@pytest.fixture
def copy(tiny_artifact: Artifact, tmp_path: Path) -> Path:
    """Return a copy of a small artifact to damage."""
    return Path(shutil.copytree(tiny_artifact.folder, tmp_path / "copy"))


def test_serve_gets_the_artifact_and_the_settings(
    artifact: Artifact, served: list[tuple[Settings, Artifact]]
) -> None:
    assert main(["serve", "--artifact", str(artifact.folder), "--port", "7"]) == 0
    ((settings, found),) = served
    assert settings.port == 7
    assert found == artifact


@pytest.mark.parametrize(
    ("name", "how"),
    [
        (name, how)
        for name in (MANIFEST, *FILES)
        for how in ("missing", "empty", "cut short", "one bit", "a link")
        if name != ENCODER_DATA or how not in ("empty", "cut short", "one bit")  # has no bytes
    ],
)
def test_a_damaged_artifact_is_never_served(
    copy: Path,
    name: str,
    how: str,
    served: list[tuple[Settings, Artifact]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(copy, name, how)
    assert main(["serve", "--artifact", str(copy)]) == 1
    assert name in one_line(capsys, "serve")
    assert served == []


def test_a_bad_variable_is_one_line_too(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADSCOPE_PORT", "http")
    assert main(["serve", "--artifact", str(artifact.folder)]) == 2
    assert one_line(capsys, "serve").endswith(": HEADSCOPE_PORT=http must be a valid integer")


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


def test_a_real_process_exits_with_one_line(copy: Path) -> None:
    damage(copy, WEIGHTS, "one bit")
    done = subprocess.run(
        [sys.executable, "-m", "service", "serve", "--artifact", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        f"headscope serve: {copy / WEIGHTS} is damaged (wrong SHA-256); export the model again\n"
    )
