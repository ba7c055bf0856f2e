"""Variants of sentence-piece tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder
from tests.model.tokenizer_oracle import assert_equals_transformers

FLAGS = [
    ("XLMRobertaTokenizer", {"add_prefix_space": False}),
    ("CamembertTokenizer", {"add_prefix_space": False}),
    ("AlbertTokenizer", {"do_lower_case": False}),
    ("AlbertTokenizer", {"keep_accents": True}),
    ("AlbertTokenizer", {"add_prefix_space": False, "trim_offsets": False}),
    ("T5Tokenizer", {"extra_ids": 2, "extra_special_tokens": []}),
    ("T5Tokenizer", {"extra_ids": 3}),
    ("T5Tokenizer", {"legacy": False, "eos_token": "<unk>", "add_prefix_space": False}),
    ("DebertaV2Tokenizer", {"do_lower_case": True}),
    ("DebertaV2Tokenizer", {"split_by_punct": True}),
    ("DebertaV2Tokenizer", {"add_prefix_space": False}),
    ("DebertaV2Tokenizer", {"unk_id": 2, "unk_token": "<oov>"}),
]


@pytest.mark.parametrize(("name", "flags"), FLAGS, ids=str)
def test_flags_of_each_class(tmp_path: Path, name: str, flags: dict[str, Any]) -> None:
    assert_equals_transformers(write_tokenizer_folder(tmp_path, name, **flags), VOCAB_SIZE)


@pytest.mark.parametrize(
    ("name", "special"),
    [("XLMRobertaTokenizer", 3), ("CamembertTokenizer", 1), ("AlbertTokenizer", 0)],
)
def test_the_piece_of_unknown_characters(tmp_path: Path, name: str, special: int) -> None:
    """The vocabulary has it elsewhere, but XLM-R and ALBERT still use its usual id."""
    write_tokenizer_folder(tmp_path, name)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    pieces = content["model"]["vocab"]
    unknown = next(index for index, (piece, _) in enumerate(pieces) if piece == "<unk>")
    pieces[unknown], pieces[special + 10] = pieces[special + 10], pieces[unknown]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"added_tokens": []}))
    assert_equals_transformers(tmp_path, VOCAB_SIZE)


@pytest.mark.parametrize("name", ["XLMRobertaTokenizer", "CamembertTokenizer", "AlbertTokenizer"])
@pytest.mark.parametrize("nested", [True, False])
def test_sentencepieces_table_is_found(tmp_path: Path, name: str, nested: bool) -> None:
    write_tokenizer_folder(tmp_path, name)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    steps = content["normalizer"].get("normalizers", [content["normalizer"]])
    table = next(step for step in steps if step["type"] == "Precompiled")
    others = {"type": "Sequence", "normalizers": [{"type": "NFD"}, table]}
    content["normalizer"] = others if nested else table
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert assert_equals_transformers(tmp_path, VOCAB_SIZE).encode("ﬁ").ids[1:-1] != []
