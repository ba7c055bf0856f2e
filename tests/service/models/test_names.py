"""Names are checked before a model is exported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from service.cli import main
from service.models.names import aliases_of, check_names, names_of, unique_names
from service.settings import Settings
from tests.service.cli.said import one_line
from tests.service.several import variant

FORGED = "a\n2026-01-01T00:00:00.000Z critical headscope: forged \x1b[31m"


@pytest.fixture
def twins(tiny_checkpoint: Path, tmp_path: Path) -> tuple[str, str]:
    """Return two folders of the same name, each with a checkpoint."""
    first, second = (tmp_path / parent / "name" for parent in "ab")
    for folder in (first, second):
        shutil.copytree(tiny_checkpoint, folder)
    return str(first), str(second)


@pytest.mark.parametrize("kind", ["models", "artifacts"])
def test_two_of_one_name_are_refused_before_any_is_opened_or_exported(
    twins: tuple[str, str],
    kind: str,
    tiny_artifact: Artifact,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("service.cli.serve.open_artifact", None)  # whoever calls it fails
    two = [str(tiny_artifact.folder)] * 2 if kind == "artifacts" else twins
    name = f"{tiny_artifact.manifest.model}:fp32" if kind == "artifacts" else "name:fp32"
    assert main(["serve", *(flag for one in two for flag in (f"--{kind[:-1]}", one))]) == 1
    said = one_line(capsys, "serve")
    assert f"{name} is to be served 2 times" in said
    assert said.endswith("give each a name of its own with --served-model-name")


def test_names_of_their_own_tell_them_apart(twins: tuple[str, str]) -> None:
    check_names(Settings(model=twins, served_model_name=("first", "second")))
    with pytest.raises(ValueError, match=r"^second is to be served 2 times"):
        check_names(Settings(model=twins, served_model_name=("second", "second")))


def test_an_artifact_counts_by_its_precision(
    twins: tuple[str, str], tiny_artifact: Artifact, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_artifact.folder, tmp_path / "artifact"))
    manifest = variant(tiny_artifact, "name", 12).manifest
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    with pytest.raises(ValueError, match="name:fp32 is to be served 2 times"):
        check_names(Settings(model=twins[:1], artifact=(folder,)))
    (folder / "manifest.json").write_text("{")  # loading it raises an error
    check_names(Settings(model=twins[:1], artifact=(folder,)))


def test_a_name_that_does_not_print_is_refused(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / FORGED))
    assert main(["serve", "--model", str(folder)]) == 1
    said = one_line(capsys, "serve")
    assert r"a\\n2026-01-01" in said
    assert "\x1b[31m" not in said
    assert said.endswith("give another with --served-model-name")
    check_names(Settings(model=(str(folder),), served_model_name=("a",)))


def test_names_that_print_stay_as_they_are() -> None:
    names = ["org/Zweites Mödell", "b"]
    assert unique_names([(name, "fp32") for name in names]) == names


def test_names(artifact: Artifact) -> None:
    one, other = variant(artifact, "a", 8), variant(artifact, "b", 8)
    small = variant(artifact, "a", 8, precision="int8")
    assert names_of([one]) == ["a"]
    assert names_of([one, other]) == ["a", "b"]
    assert names_of([other, small, one]) == ["b", "a:int8", "a:fp32"]
    with pytest.raises(ValueError, match="a:fp32 is to be served 2 times"):
        names_of([one, other, one])
    with pytest.raises(ValueError, match="a:int8 is to be served 2 times"):
        names_of([one, small, variant(artifact, "a:int8", 8)])
    assert names_of([one, other], ["x", "a"]) == ["x", "a"]
    with pytest.raises(ValueError, match="x is to be served 2 times"):
        names_of([one, other], ["x", "x"])


@pytest.mark.parametrize(
    ("aliases", "says"),
    [
        (["x=c"], "--alias x=c: c is not served; there are a, b"),
        (["a=b"], "--alias a=b: a is the name of a model"),
        (["x=a", "x=b"], "--alias x=b: x is an alias of a already"),
    ],
)
def test_an_alias_that_names_no_single_model_is_refused(aliases: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        aliases_of(Settings(alias=aliases), ["a", "b"])


def test_aliases_of_models() -> None:
    def names(*aliases: str) -> dict[str, str]:
        settings = Settings(alias=aliases, models="models", pinned=("c@2",))
        found = aliases_of(settings, ["a", "b=c"])
        return {alias: str(target) for alias, target in found.items()}

    assert names() == {}
    assert names("x=a", "y/z=a", "x=a") == {"x": "a", "y/z": "a"}
    assert names("x=b=c") == {"x": "b=c"}
    assert names("x=c@2", "y=c") == {"x": "c@2", "y": "c"}
