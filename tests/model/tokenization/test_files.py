"""Files of a tokenizer, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from model.errors import CheckpointError
from model.tokenization.files import TokenizerFiles
from tests.model.checkpoints import edit_json
from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder
from tests.model.tokenizer_oracle import assert_equals_transformers

VOCABULARY_FILES = ["BertTokenizer", "MPNetTokenizer", "RobertaTokenizer", "Qwen2Tokenizer"]


@pytest.mark.parametrize("name", VOCABULARY_FILES)
@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"add_bos_token": True, "bos_token": "<s>"},
        {"add_bos_token": True, "add_eos_token": True, "bos_token": None},
        {"add_eos_token": True},
    ],
    ids=str,
)
def test_vocabulary_files_without_tokenizer_json(
    tmp_path: Path, name: str, flags: dict[str, Any]
) -> None:
    settings = {"tokenizer_class": name} | flags
    write_vocabulary_files(write_tokenizer_folder(tmp_path, name))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert_equals_transformers(tmp_path, VOCAB_SIZE)


def write_vocabulary_files(folder: Path) -> None:
    """Write the files that preceded tokenizer.json, without it."""
    Tokenizer.from_file(str(folder / "tokenizer.json")).model.save(str(folder))
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize("missing", ["vocab.json", "merges.txt"])
def test_half_of_the_vocabulary_files_is_not_enough(tmp_path: Path, missing: str) -> None:
    write_vocabulary_files(write_tokenizer_folder(tmp_path, "RobertaTokenizer"))
    (tmp_path / missing).unlink()
    assert "neither tokenizer.json nor vocab.json and merges.txt" in refusal(
        tmp_path, ("vocab.json", "merges.txt")
    )


MODEL_FILES = ["tokenizer.model", "sentencepiece.bpe.model", "spm.model", "tekken.json"]


@pytest.mark.parametrize("model", MODEL_FILES)
def test_a_model_alone_is_to_be_saved_once(tmp_path: Path, model: str) -> None:
    write_tokenizer_folder(tmp_path, "XLMRobertaTokenizer")
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / model).write_bytes(b"\x00")
    message = refusal(tmp_path)
    assert f"holds its tokenizer as {model} only; save it with transformers once" in message


def test_a_model_goes_before_vocabulary_files(tmp_path: Path) -> None:
    """transformers does so for tokenizer.model, but not for other names."""
    write_vocabulary_files(write_tokenizer_folder(tmp_path, "BertTokenizer"))
    (tmp_path / "spm.model").write_bytes(b"\x00")
    assert_equals_transformers(tmp_path, VOCAB_SIZE)
    (tmp_path / "tokenizer.model").write_bytes(b"\x00")
    assert "as tokenizer.model only" in refusal(tmp_path, ("vocab.txt",))


def test_a_tokenizer_json_goes_before_a_model(tmp_path: Path) -> None:
    write_tokenizer_folder(tmp_path, "XLMRobertaTokenizer")
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"\x00")
    (tmp_path / "tokenizer.model").write_bytes(b"\x00")
    assert_equals_transformers(tmp_path, VOCAB_SIZE)


def test_a_file_for_another_version_is_refused(tmp_path: Path) -> None:
    write_tokenizer_folder(tmp_path, "BertTokenizer", fast_tokenizer_files=["tokenizer.json"])
    assert TokenizerFiles.read(tmp_path).stored
    edit_json(tmp_path / "tokenizer_config.json", fast_tokenizer_files=["tokenizer.4.0.0.json"])
    assert "names ['tokenizer.4.0.0.json'] as its fast_tokenizer_files" in refusal(tmp_path)


@pytest.mark.parametrize("part", ["added_tokens", "model"])
def test_a_part_of_tokenizer_json_is_missing(tmp_path: Path, part: str) -> None:
    write_tokenizer_folder(tmp_path, "BertTokenizer")
    edit_json(tmp_path / "tokenizer.json", **{part: None})
    assert f"no readable tokenizer: tokenizer.json lacks {part}" in refusal(tmp_path)


def refusal(folder: Path, files: tuple[str, ...] = ()) -> str:
    with pytest.raises(CheckpointError) as caught:
        TokenizerFiles.read(folder).require("Tokenizer", files)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message
