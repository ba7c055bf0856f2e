"""Checks of a file beyond the types of its values, and the example of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.models.config_checks import check_content
from service.settings import Settings
from service.settings.model_group import ModelTable
from service.settings.sources import read

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "headscope.toml"
MODELS = "models = 'models'\n"


def check(path: Path) -> Settings:
    settings = Settings(config=path)
    check_content(settings, read(path, Settings))
    return settings


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with models in two versions and a file of keys."""
    monkeypatch.chdir(tmp_path)
    for version in ("1", "2"):
        for name in ("m", "bge-m3"):
            (tmp_path / "models" / name / version).mkdir(parents=True)
            (tmp_path / "models" / name / version / "manifest.json").touch()
    (tmp_path / "keys.txt").touch()
    return tmp_path


def test_the_example_is_valid_and_has_every_key(here: Path) -> None:
    (here / "artifacts" / "bge-small").mkdir(parents=True)
    settings = check(EXAMPLE)
    assert [*settings.tables] == ["minilm", "bge-small", "reranker", "bge-m3"]
    text = EXAMPLE.read_text("utf-8")
    for name in ModelTable.model_fields:
        key = name.replace("_", "-")
        assert re.search(rf"^(\[model\..+\.)?{key}\b", text, re.MULTILINE), name
    page = (EXAMPLE.parent / "models.md").read_text("utf-8")
    for name in ModelTable.model_fields:
        assert f"`{name.replace('_', '-')}`" in page, name


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[model.'']\nsource = 'x'\n", "model.: the name of a model needs printable characters"),
        ("models = 'no'\n", "line 1, column 1: models no is not a folder"),
        ("artifact = ['models', 'no']\n", "line 1, column 1: artifact no is not a folder"),
        ("keys-file = 'no'\n", "line 1, column 1: keys-file no is not a file"),
        ("model.a.artifact = 'no'\n", "line 1, column 1: model.a: artifact no is not a folder"),
        ("[model.a]\nsource = './no'\n", "line 2, column 1: model.a: source ./no does not exist"),
        ("[model.a]\n", "line 1, column 1: model.a: give its source or artifact"),
        (MODELS + "[model.a]\n", "line 2, column 1: model.a: the folder models has no such model"),
        (MODELS + "model.m.version = '3'\n", "no version 3; there are 1, 2"),
        ("[model.a]\nsource = 'x'\nversion = '1'\n", "line 3, column 1: model.a: version is for"),
        (
            "[model.a]\nsource = 'x'\nartifact = 'models'\n",
            "source and artifact exclude",
        ),
        ("[model.a]\nartifact = 'models'\npooling = 'cls'\n", "an artifact has its own pooling"),
        ("on-demand = false\n[model.a]\nsource = 'x'\nload = 'on-demand'\n", "line 4, column 1"),
        ("artifact = 'models'\n[model.a]\nsource = 'x'\n", "artifact is for models without tables"),
        ("model.a.source = 'x'\n[alias]\nb = 'c'\n", "line 3, column 1: alias.b: c is not a model"),
        ("model.a.source = 'x'\n[alias]\na = 'a'\n", "alias.a: this is the name of a model"),
        ("model.a={source='x',load='off'}\nalias.b='a'\n", "line 2, column 1: alias.b: a is off"),
    ],
)
def test_what_is_wrong_has_its_place(content: str, says: str, here: Path) -> None:
    file = here / "headscope.toml"
    file.write_text(content)
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        check(file)
    assert str(refused.value).startswith(f"--config {file}, line ")


def test_an_alias_of_a_pinned_version(here: Path) -> None:
    file = here / "headscope.toml"
    file.write_text(MODELS + "pinned = ['m@1']\nalias.prod = 'm@1'\nmodel.bge-m3.version = '1'\n")
    check(file)
