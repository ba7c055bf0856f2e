"""Special tokens where the files leave it to `add_bos_token` and `add_eos_token`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.model.checkpoints import edit_json
from tests.model.tokenizer_folders import CLASSES, VOCAB_SIZE, write_tokenizer_folder
from tests.model.tokenizer_oracle import SOME_TEXTS, assert_equals_transformers

ASKED: list[dict[str, Any]] = [
    {},
    {"add_bos_token": True, "bos_token": "<s>"},
    {"add_bos_token": True, "add_eos_token": True, "bos_token": None},
    {"add_bos_token": False, "add_eos_token": True, "eos_token": "[E]"},
]


@pytest.mark.parametrize("name", CLASSES)
def test_tokenizer_json_without_a_post_processor(tmp_path: Path, name: str) -> None:
    """Beside a tokenizer.json neither is asked for, whatever tokenizer_config.json says."""
    write_tokenizer_folder(tmp_path, name, add_bos_token=True, add_eos_token=True)
    content = json.loads((tmp_path / "tokenizer.json").read_text()) | {"post_processor": None}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert_equals_transformers(tmp_path, VOCAB_SIZE, SOME_TEXTS)


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_vocabulary_files_ask_for_bounds(tmp_path: Path, asked: dict[str, Any]) -> None:
    write_tokenizer_folder(tmp_path, "Qwen2Tokenizer")
    content = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    (tmp_path / "tokenizer.json").unlink()
    merges = "\n".join(" ".join(pair) for pair in content["merges"])
    (tmp_path / "vocab.json").write_text(json.dumps(content["vocab"]))
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    edit_json(tmp_path / "tokenizer_config.json", **asked)
    ours = assert_equals_transformers(tmp_path, VOCAB_SIZE, SOME_TEXTS)
    bounds = (asked.get("add_bos_token") and asked["bos_token"], asked.get("add_eos_token"))
    assert len(ours.encode("").ids) == sum(map(bool, bounds))
