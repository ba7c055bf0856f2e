"""Variants of BERT's and MPNet's tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder
from tests.model.tokenizer_oracle import assert_equals_transformers

FLAGS = [
    ("BertTokenizer", {"do_lower_case": False, "strip_accents": True}),
    ("MPNetTokenizer", {"do_lower_case": False}),
    ("MPNetTokenizer", {"strip_accents": False, "tokenize_chinese_chars": False}),
]


@pytest.mark.parametrize(("name", "flags"), FLAGS, ids=str)
def test_flags_of_each_class(tmp_path: Path, name: str, flags: dict[str, Any]) -> None:
    assert_equals_transformers(write_tokenizer_folder(tmp_path, name, **flags), VOCAB_SIZE)
