"""`headscope verify`: a line a tensor, and a verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model.artifact.manifest import Artifact
from model.artifact.verification import Verdict
from service.cli import main

FAILED = Verdict(passed=False, failed="hidden state 1")


def test_verify_reports(artifact: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--artifact", str(artifact.folder)]) == 0
    *lines, verdict = capsys.readouterr().out.splitlines()
    assert (
        len(lines) == 3 + 2 + 2 + 1
    )  # hidden states, maps and values of layers, the pooled vector
    assert all(line.endswith("passed") for line in lines)
    assert verdict.startswith("passed: ")


@pytest.mark.parametrize(
    ("at_export", "now", "code"),
    [
        ({"heads": FAILED}, {"heads": FAILED}, 0),
        ({"heads": FAILED}, {}, 0),
        ({}, {"heads": FAILED}, 4),
        ({"heads": FAILED}, {"vectors": FAILED}, 4),
        ({"heads": FAILED}, {"vectors": FAILED, "heads": FAILED}, 4),
    ],
)
def test_a_use_that_passed_at_the_export_has_to_pass(
    artifact: Artifact,
    monkeypatch: pytest.MonkeyPatch,
    at_export: dict[str, Verdict],
    now: dict[str, Verdict],
    code: int,
) -> None:
    record = artifact.manifest.verification.model_copy(update=at_export)
    manifest = artifact.manifest.model_copy(update={"verification": record})
    of_now = artifact.manifest.verification.model_copy(update=now)
    monkeypatch.setattr("model.export.verify.report", lambda _: "")
    monkeypatch.setattr("model.export.verify.verify", lambda *_: of_now)
    monkeypatch.setattr(
        "service.cli.verify.load_artifact", lambda _: replace(artifact, manifest=manifest)
    )
    assert main(["verify", "--artifact", "a"]) == code
