"""Special tokens by `add_bos_token` and `add_eos_token`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from model.errors import CheckpointError
from model.families.registry import parse_config
from model.tokenization.templates import check_template
from model.tokenization.tokenizer import load_tokenizer
from tests.model.checkpoints import TINY, edit_json, write_tokenizer
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
    """With a tokenizer.json neither is added, whatever tokenizer_config.json says."""
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


@pytest.mark.parametrize(
    ("token", "count", "segment", "said"),
    [
        ("[CLS]", 200, 0, "puts 200 special tokens around a text, of which the model takes 40 tok"),
        ("[CLS]", 40, 0, "puts 40 special tokens around a text, of which the model takes 40 tok"),
        ("[CLS]", 1, 7, r"gives a text the segment 7, where the encoder has 2 \(type_vocab_size\)"),
        ("[X]", 1, 0, "puts the token 999999 around a text, where the encoder has 60"),
    ],
)
def test_templates_that_the_model_cannot_take(
    tmp_path: Path, token: str, count: int, segment: int, said: str
) -> None:
    config = parse_config({**TINY, "model_type": "bert"})
    write_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path, config, lowercase=False)
    check_template(tmp_path, tokenizer, config, 40)
    tokenizer.add_special_tokens(["[X]"])
    tokenizer.post_processor = TemplateProcessing(
        single=" ".join([f"{token}:{segment}"] * count + [f"$A:{segment}"]),
        pair="$A $B",
        special_tokens=[("[CLS]", 2), ("[X]", 999_999)],
    )
    with pytest.raises(CheckpointError, match=said) as failed:
        check_template(tmp_path, tokenizer, config, 40)
    assert "\n" not in str(failed.value)
