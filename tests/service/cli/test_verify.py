"""`headscope verify` and devices: a line a tensor, and a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from model.artifact.manifest import Artifact
from model.artifact.verification import Verdict
from service.cli import main
from tests.service.cli.conftest import Exporter

FAILED = Verdict(passed=False, failed="hidden state 1")


@pytest.mark.parametrize("device", [[], ["--device", "cpu"]])
def test_verify_reports(
    artifact: Artifact, device: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--artifact", str(artifact.folder), *device]) == 0
    *lines, verdict = capsys.readouterr().out.splitlines()
    assert (
        len(lines) == 3 + 2 + 2 + 1
    )  # hidden states, maps and values of layers, the pooled vector
    assert all(line.endswith("passed") for line in lines)
    assert verdict.startswith("passed: ")
    assert verdict.endswith("inputs, ONNX against PyTorch, fp32 on CPUExecutionProvider")


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
    found = SimpleNamespace(record=lambda: of_now)
    monkeypatch.setattr("model.export.verify.verify", lambda *_: found)
    monkeypatch.setattr(
        "service.cli.verify.load_artifact", lambda _: replace(artifact, manifest=manifest)
    )
    assert main(["verify", "--artifact", "a"]) == code


def without_gpu() -> None:
    if torch.cuda.is_available() or Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_a_device_that_is_not_there_is_one_line(
    artifact: Artifact,
    small_checkpoint: Path,
    tmp_path: Path,
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The missing device ends the command before a warning about a precision's speed."""
    without_gpu()
    monkeypatch.setattr("service.artifacts.opening.has_products", lambda _: False)
    verify = ["verify", "--artifact", str(artifact.folder), "--device", "cuda"]
    out = tmp_path / "out"
    export = ["export", "--model", str(small_checkpoint), "--precision", precision]
    for command in (verify, [*export, "--device", "cuda", "--out", str(out)]):
        assert main(command) == 1
        printed = capsys.readouterr()
        (line,) = printed.err.splitlines()
        assert line.startswith(f"headscope {command[0]}: device cuda: ")
        assert printed.out == ""
    assert not out.exists()


@pytest.mark.slow
def test_an_export_in_half_precision(
    exported: Callable[..., Artifact],
    exporter: Exporter,
    tiny_checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command requests half precision; the exporter's tests check the export."""
    exporter.artifact = exported(tiny_checkpoint, "tiny", "fp16")
    out = tmp_path / "fp16"
    command = ["export", "--model", str(tiny_checkpoint), "--precision", "fp16", "--device", "cpu"]
    assert main([*command, "--out", str(out)]) == 0
    assert exporter.asked == [("tiny", "fp16", "cpu")]
    capsys.readouterr()
    assert main(["verify", "--artifact", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("fp16 on CPUExecutionProvider")
