from __future__ import annotations

from pathlib import Path

import pytest
from sentence_transformers.util.misc import ORIGINAL_TRANSFORMER_MODELS

from model.sources.locate import DEFAULT_MODEL
from model.sources.short_names import ORIGINAL, full_name


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("all-MiniLM-L6-v2", DEFAULT_MODEL),
        ("all-MiniLM-L6-v2@v1", f"{DEFAULT_MODEL}@v1"),
        (DEFAULT_MODEL, DEFAULT_MODEL),
        ("bert-base-uncased", "bert-base-uncased"),
        ("BAAI/bge-small-en-v1.5@main", "BAAI/bge-small-en-v1.5@main"),
        ("./folder", "./folder"),
        ("~somebody", "~somebody"),
        ("", ""),
    ],
)
def test_a_name_without_an_organisation_gets_one(name: str, full: str) -> None:
    assert full_name(name) == full


def test_a_folder_of_the_name_stays_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all-MiniLM-L6-v2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert full_name("all-MiniLM-L6-v2") == "all-MiniLM-L6-v2"


def test_the_first_models_are_those_of_sentence_transformers() -> None:
    assert set(ORIGINAL_TRANSFORMER_MODELS) == ORIGINAL
