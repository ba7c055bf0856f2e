from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model.artifact.modules import ModuleEntry, listed_modules, transformer_folder
from model.errors import ConfigError


def write(folder: Path, *entries: Any) -> Path:
    (folder / "modules.json").write_text(json.dumps(list(entries)))
    return folder


def entry(kind: str, path: str | None = "") -> dict[str, Any]:
    return {"idx": 0, "name": "0", "path": path, "type": kind}


def test_without_the_file_the_folder_is_the_transformer(tmp_path: Path) -> None:
    assert listed_modules(tmp_path) is None
    assert transformer_folder(tmp_path) == tmp_path


@pytest.mark.parametrize("package", ["models", "base.modules", "sentence_transformer.modules"])
def test_classes_of_every_release_have_one_name(tmp_path: Path, package: str) -> None:
    types = ("Transformer", f"sentence_transformers.{package}.Pooling", "pylate.models.Dense.Dense")
    folder = write(tmp_path, *(entry(kind, name) for kind, name in zip(types, "abc", strict=True)))
    kinds = ("Transformer", "Pooling", "pylate.models.Dense.Dense")
    expected = [ModuleEntry(kind, folder / name) for kind, name in zip(kinds, "abc", strict=True)]
    assert listed_modules(folder) == expected


@pytest.mark.parametrize(
    ("path", "inside"), [("", "."), (None, "."), ("0_Transformer", "0_Transformer"), ("a/", "a")]
)
def test_a_transformer_may_have_a_folder_of_its_own(
    tmp_path: Path, path: str | None, inside: str
) -> None:
    write(tmp_path, entry("sentence_transformers.models.Transformer", path))
    assert transformer_folder(tmp_path) == tmp_path / inside


def test_another_first_module_says_nothing_of_the_transformer(tmp_path: Path) -> None:
    assert transformer_folder(write(tmp_path, entry("CNN", "0_CNN"))) == tmp_path
    assert transformer_folder(write(tmp_path)) == tmp_path


@pytest.mark.parametrize("path", ["../a", "a/b", "/etc", "..", "../", "a/../a"])
def test_folders_elsewhere_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="is not a folder beside it"):
        transformer_folder(write(tmp_path, entry("Transformer", path)))


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{", "is not readable JSON"), ("{}", "not a list"), ("[3]", "not a list")],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(ConfigError, match=reason):
        listed_modules(tmp_path)
