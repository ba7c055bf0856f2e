"""Ids of a vocab.json and of added tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model.errors import CheckpointError
from model.tokenization.files import TokenizerFiles
from model.tokenization.piece_vocabulary import DeclaredTokens, read_ids


def test_ids_are_read(tmp_path: Path) -> None:
    (path := tmp_path / "vocab.json").write_text('{"a": 3, "é": 0}', encoding="utf-8")
    assert read_ids(path) == {"a": 3, "é": 0}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"a": "0"}, "does not hold ids of tokens"),
        ({"a": -1}, "does not hold ids of tokens"),
        ({"a": 1, "b": 1}, "gives two tokens one id"),
        ({"a": 4_000_000_000}, "does not hold ids of tokens"),
        (["a"], "does not hold a JSON object"),
    ],
)
def test_what_is_refused(tmp_path: Path, content: Any, said: str) -> None:
    (path := tmp_path / "vocab.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=said):
        read_ids(path)


def test_an_added_token_does_not_have_a_special_tokens_id(tmp_path: Path) -> None:
    """transformers would move the unknown token to another id."""
    (tmp_path / "vocab.json").write_text('{"<unk>": 0, "a": 1}')
    settings = {"added_tokens_decoder": {"0": {"content": "<x>"}, "1": {"content": "b"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"<x> the id 0, which vocab\.json gives <unk>"):
        DeclaredTokens.read(TokenizerFiles.read(tmp_path), {"unk_token": "<unk>"})
