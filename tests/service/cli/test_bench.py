"""`headscope bench` and `config check`: flags; test_bench.py in files checks results."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from service.cli import main
from tests.service.cli.said import one_line


def test_pairs_that_are_not_there(
    artifact: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.csv"
    assert main(["bench", "--artifact", str(artifact.folder), "--pairs", str(pairs)]) == 1
    assert f"No such file or directory: '{pairs}'" in one_line(capsys, "bench")


def test_an_artifact_is_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--artifact", "a", "--model", "b"]) == 2
    assert "--artifact and --model exclude each other" in one_line(capsys, "bench")


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        ("port = 1\nworkers = 2\n", 0, "2 settings, all valid"),
        ("port = 1\n", 0, "1 setting, all valid"),
        ("port = 'x'\n", 2, "line 1, column 1: port=x"),
        ("port = \n", 1, "line 1, column"),
    ],
)
def test_it_says_what_is_wrong(
    content: str, code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "headscope.toml"
    file.write_text(content)
    assert main(["config", "check", str(file)]) == code
    assert says in "".join(capsys.readouterr())
