"""Commands of a user without a home folder, and of one whose home is not writable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from service.cli import main
from service.settings import Settings
from tests.service.cli.said import one_line


def no_user(uid: int) -> None:
    raise KeyError(f"getpwuid(): uid not found: {uid}")


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as a user without a passwd entry, as of `docker run --user 12345`."""
    names = ("HOME", "HEADSCOPE_CACHE_FOLDER", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME")
    for name in (*names, "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_user)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.mark.usefixtures("homeless")
def test_an_artifact_needs_no_home(
    artifact: Artifact, served: list[tuple[Settings, Artifact]], tmp_path: Path
) -> None:
    assert main(["serve", "--artifact", str(artifact.folder)]) == 0
    assert len(served) == 1
    Path("texts.txt").write_text("a text\n", encoding="utf-8")
    command = ["encode", "texts.txt", "--out", "out.npy", "--artifact", str(artifact.folder)]
    assert main(command) == 0
    assert {path.name for path in Path.cwd().iterdir()} == {"texts.txt", "out.npy"}


@pytest.mark.usefixtures("homeless")
def test_a_folder_with_a_given_cache_needs_no_home(
    exported: Callable[..., Artifact],
    small_checkpoint: Path,
    served: list[tuple[Settings, Artifact]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    artifact = exported(small_checkpoint, "small")
    monkeypatch.setattr("service.artifacts.opening._kept", lambda *_: artifact)
    cache = str(tmp_path / "cache")
    assert main(["serve", "--model", str(small_checkpoint), "--cache-folder", cache]) == 0
    assert served[0][0].cache_folder == Path(cache)


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize(
    ("command", "setting"),
    [
        (["export", "--model", "CHECKPOINT"], "HEADSCOPE_CACHE_FOLDER"),
        (["serve", "--model", "CHECKPOINT"], "--cache-folder"),
        (["fetch", "someone/model"], "HF_HOME"),
    ],
)
def test_a_cache_needs_one_and_names_its_setting(
    command: list[str], setting: str, small_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(small_checkpoint) if word == "CHECKPOINT" else word for word in command]
    assert main(words) == 1
    line = one_line(capsys, command[0])
    assert "needs a home folder, which this user does not have" in line
    assert setting in line
    assert [*Path.cwd().iterdir()] == []


@pytest.mark.parametrize(
    ("command", "setting"),
    [
        (["export", "--model", "CHECKPOINT"], "HEADSCOPE_CACHE_FOLDER"),
        (["export", "--model", "CHECKPOINT", "--pooling", "cls"], "HEADSCOPE_CACHE_FOLDER"),
        (["fetch", "someone/model"], "HF_HOME"),
    ],
)
def test_a_home_that_cannot_be_written_to_names_the_setting(
    command: list[str],
    setting: str,
    small_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    for name in ("HEADSCOPE_CACHE_FOLDER", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    words = [str(small_checkpoint) if word == "CHECKPOINT" else word for word in command]
    assert main(words) == 1
    line = one_line(capsys, command[0])
    assert "cannot be written to (Not a directory)" in line
    assert setting in line
