"""Variants of byte-pair tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder
from tests.model.tokenizer_oracle import assert_equals_transformers

FLAGS = [
    ("RobertaTokenizer", {"add_prefix_space": True}),
    ("RobertaTokenizer", {"trim_offsets": False}),
    ("RobertaTokenizer", {"add_prefix_space": True, "trim_offsets": False}),
    ("Qwen2Tokenizer", {"add_prefix_space": True}),
    ("Qwen2Tokenizer", {"add_bos_token": True, "bos_token": "<|im_start|>"}),
    ("GemmaTokenizer", {"add_bos_token": True, "add_eos_token": True}),
]


@pytest.mark.parametrize(("name", "flags"), FLAGS, ids=str)
def test_flags_of_each_class(tmp_path: Path, name: str, flags: dict[str, Any]) -> None:
    assert_equals_transformers(write_tokenizer_folder(tmp_path, name, **flags), VOCAB_SIZE)


def test_merges_may_be_texts(tmp_path: Path) -> None:
    """tokenizers wrote them so before version 0.20."""
    write_tokenizer_folder(tmp_path, "RobertaTokenizer")
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert_equals_transformers(tmp_path, VOCAB_SIZE)
