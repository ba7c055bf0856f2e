"""`headscope verify`: a line a tensor, and a verdict."""

from __future__ import annotations

import pytest

from model.artifact.manifest import Artifact
from service.cli import main


def test_verify_reports(artifact: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--artifact", str(artifact.folder)]) == 0
    *lines, verdict = capsys.readouterr().out.splitlines()
    assert (
        len(lines) == 3 + 2 + 2 + 1
    )  # hidden states, maps and values of layers, the pooled vector
    assert all(line.endswith("passed") for line in lines)
    assert verdict.startswith("passed: ")
