"""The commands: what they print, what they return, and one line for whatever goes wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from model.artifact.manifest import (
    ENCODER_DATA,
    FILES,
    MANIFEST,
    TOKENIZER,
    WEIGHTS,
    Artifact,
    load_artifact,
    write_manifest,
)
from model.export.exporter import Exported
from service.artifacts import open_artifact
from service.cli import main
from service.settings import Settings


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE_FOLDER", str(tmp_path / "cache"))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, Artifact]]:
    """What `serve` was called with; it does not really serve."""
    calls: list[tuple[Settings, Artifact]] = []

    def serve(settings: Settings, artifacts: list[Artifact]) -> int:
        (artifact,) = artifacts
        calls.append((settings, artifact))
        return 0

    monkeypatch.setattr("service.process.server.serve", serve)
    return calls


@pytest.fixture
def copy(artifact: Artifact, tmp_path: Path) -> Path:
    """A copy of the artifact to damage."""
    return Path(shutil.copytree(artifact.folder, tmp_path / "copy"))


def one_line(capsys: pytest.CaptureFixture[str], command: str) -> str:
    """What the failed command said: one line on standard error, after its progress."""
    out, err = capsys.readouterr()
    assert out == ""
    *progress, line = err.splitlines()
    assert all(step.startswith("headscope: ") for step in progress)
    assert line.startswith(f"headscope {command}: ")
    return line


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: headscope COMMAND")
    assert err == ""


@pytest.mark.parametrize("arguments", [["bake"], ["--port", "1"], [""], ["serve "]])
def test_an_unknown_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert err.startswith("usage: headscope COMMAND")
    assert out == ""


@pytest.mark.parametrize("command", ["serve", "export", "verify", "fetch"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main([command, "--help"])
    assert exited.value.code == 0
    assert f"headscope {command}" in capsys.readouterr().out


def test_serve_gets_the_artifact_and_the_settings(
    artifact: Artifact, served: list[tuple[Settings, Artifact]]
) -> None:
    assert main(["serve", "--artifact", str(artifact.folder), "--port", "7"]) == 0
    ((settings, found),) = served
    assert settings.port == 7
    assert found == artifact


def damage(folder: Path, name: str, how: str) -> None:
    path = folder / name
    content = path.read_bytes()
    match how:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "cut short":
            path.write_bytes(content[: len(content) // 2])
        case "one bit":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "a link":
            path.rename(folder.parent / name)
            path.symlink_to(folder.parent / name)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        (name, how)
        for name in (MANIFEST, *FILES)
        for how in ("missing", "empty", "cut short", "one bit", "a link")
        if (name, how) != (WEIGHTS, "missing")  # only PyTorch needs them
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


@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [
        ("serve", ["--artifact", "{tmp}/nothing"], "is not an artifact: it holds no manifest.json"),
        ("serve", ["--artifact", "{artifact}", "--artifact", "{artifact}"], "served 2 times"),
        ("serve", ["--model", "{tmp}"], "holds no checkpoint: there is no config.json"),
        ("serve", ["--model", "no/such-model"], "no/such-model, and HF_HUB_OFFLINE forbids"),
        ("serve", ["--model", "not a name!"], "neither a folder nor a model's name"),
        ("serve", ["--artifact", "{artifact}", "--port", "http"], "port: "),
        ("serve", ["--artifact", "{artifact}", "--max-length", "0"], "max_length: "),
        ("serve", ["--artifact", "{artifact}", "--device", "tpu"], "device: "),
        ("serve", ["--artifact", "{artifact}", "--max-length", "513"], "position table's 512"),
        ("export", ["--model", "{tmp}", "--out", "{tmp}/new"], "config.json"),
        ("export", ["--model", "no/such-model", "--out", "{tmp}/new"], "HF_HUB_OFFLINE forbids"),
        ("export", ["--model", "{small}", "--out", "{artifact}"], "is not an empty folder"),
        ("verify", ["--artifact", "{tmp}"], "is not an artifact"),
        ("fetch", ["no/such-model"], "no/such-model, and HF_HUB_OFFLINE forbids"),
    ],
)
def test_what_goes_wrong_is_one_line(
    command: str,
    arguments: list[str],
    says: str,
    artifact: Artifact,
    small_checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"tmp": tmp_path, "artifact": artifact.folder, "small": small_checkpoint}
    assert main([command, *(argument.format(**places) for argument in arguments)]) == 1
    assert says in one_line(capsys, command)


def test_a_bad_variable_is_one_line_too(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADSCOPE_PORT", "http")
    assert main(["serve", "--artifact", str(artifact.folder)]) == 1
    assert "port: " in one_line(capsys, "serve")


@pytest.mark.parametrize("command", ["serve", "export", "fetch"])
def test_a_misspelt_variable_is_one_line_too(
    command: str,
    served: list[tuple[Settings, Artifact]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HEADSCOPE_API_KEY", "s3cret")
    assert main([command]) == 1
    line = one_line(capsys, command)
    assert line.endswith("HEADSCOPE_API_KEY is no setting: did you mean HEADSCOPE_API_KEYS?")
    assert served == []


def test_a_real_process_exits_with_one_line(copy: Path) -> None:
    damage(copy, ENCODER_DATA, "one bit")
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
        f"headscope serve: {copy / ENCODER_DATA} is damaged (wrong SHA-256); "
        "export the model again\n"
    )


def test_verify_reports(artifact: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--artifact", str(artifact.folder)]) == 0
    *lines, verdict = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 + 2 + 1  # hidden states, layers with maps, the pooled vector
    assert all(line.endswith("passed") for line in lines)
    assert verdict.startswith("passed: ")


@pytest.mark.parametrize("precision", ["fp8", "INT8", ""])
def test_an_unknown_precision_is_a_wrong_use(
    precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["export", "--precision", precision, "--out", str(tmp_path / "new")])
    assert exited.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "argument --precision: invalid choice" in err
    assert not (tmp_path / "new").exists()


def test_fetch_says_where(small_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", str(small_checkpoint)]) == 0
    assert capsys.readouterr().out == f"{small_checkpoint}\n"


def test_an_export_that_fails_its_verification_is_not_served(
    artifact: Artifact,
    small_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    served: list[tuple[Settings, Artifact]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {"passed": False, "failed": "1 of 10 tensors, first hidden state 1"}
    failed = artifact.manifest.verification.model_copy(update=found)

    def export(_: Path, out: Path, *__: Any) -> Exported:
        shutil.copytree(artifact.folder, out)
        write_manifest(out, artifact.manifest.model_copy(update={"verification": failed}))
        return Exported(load_artifact(out), failed)

    monkeypatch.setattr("model.export.exporter.export", export)
    out = tmp_path / "unverified"
    assert main(["export", "--model", str(small_checkpoint), "--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert printed.out == f"{out}\n"
    assert not load_artifact(out).manifest.verification.passed

    assert main(["serve", "--artifact", str(out)]) == 1
    says = "failed its verification: 1 of 10 tensors, first hidden state 1; --allow-unverified"
    assert says in one_line(capsys, "serve")
    assert served == []
    assert main(["serve", "--artifact", str(out), "--allow-unverified"]) == 0
    assert len(served) == 1


def test_a_model_is_exported_once_and_then_found(
    artifact: Artifact,
    small_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    served: list[tuple[Settings, Artifact]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    exports: list[Path] = []
    asked: list[str] = []

    def export(
        checkpoint: Path, out: Path, model: str, precision: str, progress: Any, device: str
    ) -> Exported:
        assert device in ("auto", "cpu")  # what serves it verifies it
        assert (checkpoint, model) == (small_checkpoint, small_checkpoint.name)
        asked.append(precision)
        exports.append(out)
        shutil.copytree(artifact.folder, out)
        return Exported(load_artifact(out), artifact.manifest.verification)

    monkeypatch.setattr("model.export.exporter.export", export)
    for _ in range(2):
        assert main(["serve", "--model", str(small_checkpoint)]) == 0
    assert main(["export", "--model", str(small_checkpoint)]) == 0
    assert capsys.readouterr().out == f"{exports[0]}\n"
    assert len(exports) == 1
    assert [found.folder for _, found in served] == exports * 2
    assert exports[0].parent == Path(os.environ["HEADSCOPE_CACHE_FOLDER"]) / "artifacts"

    damage(exports[0], TOKENIZER, "one bit")
    assert main(["serve", "--model", str(small_checkpoint)]) == 1
    assert f"(delete {exports[0]})" in one_line(capsys, "serve")
    shutil.rmtree(exports[0])
    open_artifact(Settings(model=str(small_checkpoint)))
    assert len(exports) == 2

    assert main(["export", "--model", str(small_checkpoint), "--precision", "int8"]) == 0
    assert len({*exports}) == 2  # another precision is another export
    assert asked == ["fp32", "fp32", "int8"]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("fast", [True, False])
def test_an_export_that_is_likely_slower_than_fp32_says_so(
    artifact: Artifact,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    precision: str,
    fast: bool,
) -> None:
    monkeypatch.setattr("service.cli.open_artifact", lambda *_: artifact)
    monkeypatch.setattr("model.runtimes.processor.saturates", lambda: not fast)
    monkeypatch.setattr("model.runtimes.processor.computes_bfloat16", lambda: fast)
    assert main(["export", "--precision", precision]) == 0
    said = f"headscope: no fast {precision} products on this processor: fp32 is likely faster\n"
    assert capsys.readouterr().err == ("" if fast or precision == "fp32" else said)


def test_int8_of_7_and_of_8_bits_are_kept_apart(
    artifact: Artifact, small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports: list[Path] = []

    def export(checkpoint: Path, out: Path, *_: Any) -> Exported:
        exports.append(out)
        shutil.copytree(artifact.folder, out)
        return Exported(load_artifact(out), artifact.manifest.verification)

    monkeypatch.setattr("model.export.exporter.export", export)
    settings = Settings(model=str(small_checkpoint))
    for saturates in (True, False, True, False):
        monkeypatch.setattr("model.runtimes.processor.saturates", lambda answer=saturates: answer)
        open_artifact(settings, precision="int8")
    assert len(exports) == len({*exports}) == 2


def test_no_command_is_told_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "headscope COMMAND" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--out", "/dev/null/below"]) == 1
    assert "/dev/null" in one_line(capsys, "export")


def test_the_environments_model_counts_for_every_command(
    small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADSCOPE_MODEL", str(small_checkpoint))
    assert main(["fetch"]) == 0
    assert capsys.readouterr().out == f"{small_checkpoint}\n"
