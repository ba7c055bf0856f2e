"""`headscope export`: its messages, and the artifacts it keeps."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from model.artifact.manifest import (
    GRAPHS,
    TOKENIZER,
    Artifact,
    load_artifact,
    write_manifest,
)
from model.artifact.verification import Verdict
from model.errors import ConfigError
from model.families.registry import read_config
from service.artifacts.opening import open_artifact
from service.cli import main
from service.settings import Settings
from testing.disks import small_disk
from tests.service.cli.conftest import Exporter
from tests.service.cli.said import one_line


def test_an_export_that_fails_its_verification_is_not_served(
    artifact: Artifact,
    small_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    served: list[tuple[Settings, Artifact]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    verdict = Verdict(passed=False, failed="1 of 10 tensors, first hidden state 1")
    found = {"vectors": verdict, "heads": verdict}
    failed = artifact.manifest.verification.model_copy(update=found)

    def export(_: Path, out: Path, *__: Any) -> Artifact:
        shutil.copytree(artifact.folder, out)
        write_manifest(out, artifact.manifest.model_copy(update={"verification": failed}))
        return load_artifact(out)

    monkeypatch.setattr("model.export.exporter.export", export)
    out = tmp_path / "unverified"
    assert main(["export", "--model", str(small_checkpoint), "--out", str(out)]) == 4
    printed = capsys.readouterr()
    assert printed.out == f"{out}\n"
    assert not load_artifact(out).manifest.verification.passed

    assert main(["serve", "--artifact", str(out)]) == 4
    says = "failed its verification: 1 of 10 tensors, first hidden state 1; --allow-unverified"
    assert says in one_line(capsys, "serve")
    assert served == []
    assert main(["serve", "--artifact", str(out), "--allow-unverified"]) == 0
    assert len(served) == 1


def test_a_model_is_exported_once_and_then_found(
    exporter: Exporter,
    small_checkpoint: Path,
    served: list[tuple[Settings, Artifact]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for _ in range(2):
        assert main(["serve", "--model", str(small_checkpoint)]) == 0
    assert main(["export", "--model", str(small_checkpoint)]) == 0
    (folder,) = exporter.folders
    assert capsys.readouterr().out == f"{folder}\n"
    assert [found.folder for _, found in served] == [folder] * 2
    assert folder.parent == Path(os.environ["HEADSCOPE_CACHE_FOLDER"]) / "artifacts"

    content = (folder / TOKENIZER).read_bytes()
    (folder / TOKENIZER).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert main(["serve", "--model", str(small_checkpoint)]) == 1
    assert f"(delete {folder})" in one_line(capsys, "serve")
    shutil.rmtree(folder)
    open_artifact(Settings(model=str(small_checkpoint)))
    assert exporter.folders == [folder] * 2

    assert main(["export", "--model", str(small_checkpoint), "--precision", "int8"]) == 0
    assert len({*exporter.folders}) == 2  # another precision is another export
    assert [precision for _, precision, _ in exporter.asked] == ["fp32", "fp32", "int8"]
    assert {model for model, _, _ in exporter.asked} == {small_checkpoint.name}
    assert {device for *_, device in exporter.asked} <= {
        "auto",
        "cpu",
    }  # what serves it verifies it


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("fast", [True, False])
def test_an_export_that_is_likely_slower_than_fp32_says_so(
    artifact: Artifact,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    precision: str,
    fast: bool,
) -> None:
    monkeypatch.setattr("service.cli.export.open_artifact", lambda *_: artifact)
    monkeypatch.setattr("model.runtimes.openvino.saturates", lambda: not fast)
    monkeypatch.setattr("model.runtimes.openvino.computes_bfloat16", lambda: fast)
    assert main(["export", "--precision", precision]) == 0
    said = f"headscope: no fast {precision} products on this processor: fp32 is likely faster\n"
    assert capsys.readouterr().err == ("" if fast or precision == "fp32" else said)


def test_int8_of_7_and_of_8_bits_are_kept_apart(
    exporter: Exporter, small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(model=str(small_checkpoint), precision="int8")
    for saturates in (True, False, True, False):
        monkeypatch.setattr("model.runtimes.openvino.saturates", lambda answer=saturates: answer)
        open_artifact(settings)
    assert len(exporter.folders) == len({*exporter.folders}) == 2


def test_a_folder_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--out", "/dev/null/below"]) == 1
    assert "/dev/null" in one_line(capsys, "export")


def test_pictures_of_another_size(
    picture_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids = []

    def export(checkpoint: Path, *__: Any) -> Artifact:
        patches = read_config(checkpoint).embeddings.patches
        assert patches is not None
        grids.append((patches.rows, patches.columns))
        raise ConfigError("stop here")

    monkeypatch.setattr("model.export.exporter.export", export)
    asked = ["export", "--model", str(picture_checkpoint), "--image-size", "70x43"]
    assert main([*asked, "--out", str(tmp_path / "new")]) == 1
    assert grids == [(5, 3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--image-size", "224"], "'224' is not a height and a width in pixels, as 224x224"),
        (["--image-size", "0x9"], "'0x9' is not a height and a width"),
        (["--image-size", "28x28"], "--image-size needs --out"),
        (["--image-size", "28x28", "--serving-only", "--out", "new"], "--image-size needs --out"),
    ],
    ids=str,
)
def test_an_image_size_that_cannot_be_used(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_texts_have_no_image_size(
    small_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["export", "--model", str(small_checkpoint), "--image-size", "28x28"]
    assert main([*asked, "--out", str(tmp_path / "new")]) == 1
    assert "has no image processor: leave out --image-size" in one_line(capsys, "export")


@pytest.fixture
def disk(tmp_path: Path, size: str) -> Iterator[Path]:
    """Return the folder of an empty file system."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk(folder, size) as problem:
        if problem:
            pytest.skip(f"no file system can be mounted here: {problem}")
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "name"),
    [("256k", "tokenizer.json"), ("1m", "weights.safetensors"), ("17752k", "encoder.onnx")],
)
def test_a_full_disk(
    disk: Path,
    artifact: Artifact,
    small_checkpoint: Path,
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Three libraries write, each with its own exceptions; the graph is not traced again."""
    copy = shutil.copytree(artifact.folder, tmp_path / "artifact")  # others may link its files
    graph = onnx.load(copy / GRAPHS["encoder"])
    monkeypatch.setattr("model.export.exporter.export_encoder", lambda *_, **__: graph)
    out = disk / "out"
    assert main(["export", "--model", str(small_checkpoint), "--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    *steps, line = printed.err.splitlines()
    assert all(step.startswith("headscope: ") for step in steps)
    assert line.startswith(f"headscope export: {disk}/")
    assert f"/{name} cannot be written: " in line
    assert "No space left on device" in line
    assert list(disk.iterdir()) == []
