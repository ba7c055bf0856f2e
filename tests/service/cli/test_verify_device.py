"""`headscope export` and `verify` on a device, and in half precision."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from model.artifact.manifest import Artifact, load_artifact
from model.export.exporter import Exported
from service.cli import main


def without_gpu() -> None:
    if torch.cuda.is_available() or Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")


def test_verify_says_on_what(artifact: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["verify", "--artifact", str(artifact.folder)]
    for device in ([], ["--device", "cpu"]):
        assert main([*command, *device]) == 0
        verdict = capsys.readouterr().out.splitlines()[-1]
        assert verdict.endswith("inputs, ONNX against PyTorch, fp32 on CPUExecutionProvider")


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
    monkeypatch.setattr("service.artifacts.precision.has_products", lambda _: False)
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


@pytest.mark.parametrize("command", [["verify", "--artifact", "x"], ["export"]])
def test_only_known_devices_are_taken(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--device", "tpu"]) == 2
    assert "--device tpu must be cpu or cuda\n" in capsys.readouterr().err


@pytest.mark.slow
def test_an_export_in_half_precision(
    exported: Callable[..., Artifact],
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command requests half precision; the exporter's tests check the export."""
    half, asked = exported(tiny_checkpoint, "tiny", "fp16"), []

    def export(_: Path, out: Path, model: str, precision: str, __: object, device: str) -> Exported:
        asked.append((model, precision, device))
        shutil.copytree(half.folder, out)
        return Exported(load_artifact(out), half.manifest.verification)

    monkeypatch.setattr("model.export.exporter.export", export)
    out = tmp_path / "fp16"
    command = ["export", "--model", str(tiny_checkpoint), "--precision", "fp16", "--device", "cpu"]
    assert main([*command, "--out", str(out)]) == 0
    assert asked == [("tiny", "fp16", "cpu")]
    capsys.readouterr()
    assert main(["verify", "--artifact", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("fp16 on CPUExecutionProvider")
