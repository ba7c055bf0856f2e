"""Place of the fastest export; a choice is measured once for each machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from model.artifact.manifest import Artifact, load_artifact, write_manifest
from model.artifact.verification import Verdict
from model.config.precision import Precision
from model.errors import ArtifactError, VerificationError
from model.export import exporter
from model.export.exporter import Exported
from service.cli import main
from service.measuring.fastest import export_fastest, open_fastest
from service.measuring.selection import Candidate, Export
from service.measuring.timing import Rate
from service.settings import Settings

RATIOS: dict[Precision, float] = {"fp32": 1.0, "bf16": 1.5, "int8": 2.0}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE_FOLDER", str(tmp_path / "cache"))


@pytest.fixture
def settings(tiny_checkpoint: Path) -> Settings:
    return Settings(model=str(tiny_checkpoint), precision="auto")


@pytest.fixture
def failing() -> set[str]:
    """Precisions whose verification fails."""
    return set()


@pytest.fixture
def made(tiny_artifact: Artifact, failing: set[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace exports by labelled copies, and return the list of their precisions."""
    done: list[str] = []

    def copy(out: Path, precision: Precision) -> Exported:
        manifest = tiny_artifact.manifest
        found = dict.fromkeys(("vectors", "heads"), Verdict(passed=precision not in failing))
        record = manifest.verification.model_copy(update=found)
        shutil.copytree(tiny_artifact.folder, out)
        changed = {"precision": precision, "verification": record}
        write_manifest(out, manifest.model_copy(update=changed))
        return Exported(load_artifact(out), record)

    def export(_: Path, out: Path, __: str, precision: Precision, *___: Any) -> Exported:
        done.append(f"{precision} of the checkpoint")
        return copy(out, precision)

    def derive(base: Artifact, out: Path, precision: Precision, *_: Any) -> Exported:
        done.append(f"{precision} of {base.manifest.precision}")
        return copy(out, precision)

    def measure(_: Settings, export: Export, *__: Any) -> list[Candidate]:
        base = export("fp32", None)
        others = [export(precision, base) for precision in ("bf16", "int8")]
        return [
            Candidate(each, Rate(50.0, RATIOS[each.manifest.precision])) for each in [base, *others]
        ]

    monkeypatch.setattr("model.export.exporter.export", export)
    monkeypatch.setattr("model.export.exporter.derive", derive)
    monkeypatch.setattr("service.measuring.fastest.measure", measure)
    return done


ALL = ["fp32 of the checkpoint", "bf16 of fp32", "int8 of fp32"]


def test_a_choice_is_made_once_and_the_others_stay_in_the_cache(
    settings: Settings, made: list[str]
) -> None:
    reported: list[str] = []
    first = open_fastest(settings, reported.append)
    assert first.manifest.precision == "int8"
    assert reported == [
        "chosen: int8, 2.00 times fp32, verified",
        "the other candidates stay in the cache",
    ]
    second = open_fastest(settings, reported.append)
    assert second == first
    assert made == ALL
    assert reported[2].startswith(
        "int8 was the fastest when this was measured here, 2.00 times fp32 (to measure again, "
    )
    assert len(list((settings.cache_folder / "artifacts").iterdir())) == 3
    assert len(list((settings.cache_folder / "choices").iterdir())) == 1

    open_fastest(settings, reported.append, again=True)
    assert reported[3].startswith("chosen: ")
    assert made == ALL  # from the cache


@pytest.mark.parametrize("change", ["processor", "cores", "threads", "openvino"])
def test_another_machine_makes_its_own_choice(
    settings: Settings, made: list[str], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_fastest(settings, print)
    match change:
        case "processor":
            monkeypatch.setattr("service.measuring.fastest.processor_name", lambda: "another")
        case "cores":
            monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(77)))
        case "threads":
            settings = settings.model_copy(update={"threads": 77})
        case "openvino":
            monkeypatch.setattr("service.measuring.fastest.is_installed", lambda _: False)
    open_fastest(settings, print)
    assert len(list((settings.cache_folder / "choices").iterdir())) == 2


@pytest.mark.parametrize(("gpu", "choices"), [(True, 2), (False, 1)])
def test_a_device_makes_a_difference_where_there_may_be_one(
    settings: Settings, made: list[str], gpu: bool, choices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export measures on the CPU by default, and the service finds its choice."""
    monkeypatch.setattr("service.measuring.fastest.may_have_gpu", lambda: gpu)
    for device in ("cpu", "auto"):
        open_fastest(settings.model_copy(update={"device": device}), print)
    assert len(list((settings.cache_folder / "choices").iterdir())) == choices


def test_a_choice_that_cannot_be_read_says_what_to_do(settings: Settings, made: list[str]) -> None:
    open_fastest(settings, print)
    (place,) = (settings.cache_folder / "choices").iterdir()
    place.write_text("{}")
    with pytest.raises(ArtifactError, match=f"{place} is damaged; delete it to measure again"):
        open_fastest(settings, print)


def test_what_failed_its_verification_is_not_served(
    settings: Settings, made: list[str], failing: set[str]
) -> None:
    failing |= {"int8"}
    assert open_fastest(settings, print).manifest.precision == "bf16"
    failing |= {"fp32", "bf16"}
    shutil.rmtree(settings.cache_folder)
    for _ in range(2):  # measured, and then remembered
        with pytest.raises(VerificationError, match="failed its verification"):
            open_fastest(settings, print)


def test_a_folder_gets_the_fastest_alone(
    settings: Settings, made: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "below" / "out"
    artifact = export_fastest(settings, out, print)
    assert artifact == load_artifact(out)
    assert artifact.manifest.precision == "int8"
    assert made == ALL
    assert list(out.parent.iterdir()) == [out]
    assert not settings.cache_folder.exists()
    with pytest.raises(ArtifactError, match="is not an empty folder"):
        export_fastest(settings, out, print)
    assert made == ALL


def test_the_command_keeps_the_fastest(
    tiny_checkpoint: Path,
    made: list[str],
    failing: set[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["export", "--model", str(tiny_checkpoint), "--precision", "auto"]
    out = tmp_path / "out"
    assert main([*command, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out}\n"
    assert printed.err == "headscope: chosen: int8, 2.00 times fp32, verified\n"

    assert main(command) == 0
    found = Path(capsys.readouterr().out.strip())
    assert found.parent == tmp_path / "cache" / "artifacts"
    assert load_artifact(found).manifest.precision == "int8"

    failing |= {"fp32", "bf16", "int8"}
    assert main([*command, "--out", str(tmp_path / "failed")]) == 4
    assert load_artifact(tmp_path / "failed").manifest.precision == "fp32"


def test_pairs_are_for_auto(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--model", str(tiny_checkpoint), "--pairs", str(tmp_path)]) == 2
    assert "--pairs is for --precision auto" in capsys.readouterr().err


@pytest.mark.parametrize("by", ["flag", "variable"])
@pytest.mark.parametrize(("asked", "served"), [("auto", "int8"), ("bf16", "bf16")])
def test_serve_takes_a_precision(
    tiny_checkpoint: Path,
    made: list[str],
    by: str,
    asked: str,
    served: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Artifact] = []
    monkeypatch.setattr("service.process.single.serve", lambda _, found: calls.extend(found) or 0)
    command = ["serve", "--model", str(tiny_checkpoint)]
    if by == "flag":
        command += ["--precision", asked]
    else:
        monkeypatch.setenv("HEADSCOPE_PRECISION", asked)
    assert main(command) == 0
    assert [found.manifest.precision for found in calls] == [served]


@pytest.mark.slow
def test_a_real_choice(
    tiny_checkpoint: Path,
    exported: Callable[..., Artifact],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The fastest of real exports is verified and logged, and only it is kept."""

    real = {one: exported(tiny_checkpoint, "tiny", one) for one in RATIOS}

    def copied(_: object, out: Path, *asked: Any) -> Exported:
        *_, precision, progress, _ = asked
        shutil.copytree(real[precision].folder, out)
        progress("verified")
        return Exported(load_artifact(out), real[precision].manifest.verification)

    for name in ("export", "derive"):
        function = create_autospec(getattr(exporter, name), side_effect=copied)
        monkeypatch.setattr(exporter, name, function)
    monkeypatch.setattr("service.measuring.timing.ROUND_SECONDS", 0.01)
    out = tmp_path / "out"
    command = ["export", "--model", str(tiny_checkpoint), "--precision", "auto", "--out", str(out)]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out}\n"
    artifact = load_artifact(out)
    assert artifact.manifest.verification.passed
    *_, choice = printed.err.splitlines()
    assert choice.startswith(f"headscope: chosen: {artifact.manifest.precision}")
    assert "headscope: fp32: verified" in printed.err
    assert list(tmp_path.iterdir()) == [out]
