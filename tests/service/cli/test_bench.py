"""`headscope bench`: its requirements; test_evaluation.py in artifacts checks its results."""

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


def test_an_artifact_and_pairs_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    for given in ("--artifact", "--pairs"):
        (missing,) = {"--artifact", "--pairs"} - {given}
        assert main(["bench", given, "x"]) == 2
        assert f"Missing option '{missing}'" in capsys.readouterr().err
