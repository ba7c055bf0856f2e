"""Tokenizers of an encoder–decoder's targets, against transformers'."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.errors import CheckpointError
from model.tokenization.tokenizer import load_target_tokenizer
from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder
from tests.model.tokenizer_oracle import (
    SOME_TEXTS,
    assert_equals_transformers,
    assert_targets_equal_transformers,
)

LANGUAGES = {
    "MBartTokenizer": ("ro_RO", "en_XX"),
    "MBart50Tokenizer": ("ro_RO", "en_XX"),
    "NllbTokenizer": ("ron_Latn", "eng_Latn"),
}


@pytest.mark.parametrize("name", LANGUAGES)
def test_languages_of_both_sides(tmp_path: Path, name: str) -> None:
    source, target = LANGUAGES[name]
    write_tokenizer_folder(tmp_path, name, src_lang=source, tgt_lang=target)
    assert_equals_transformers(tmp_path, VOCAB_SIZE, SOME_TEXTS)
    assert_targets_equal_transformers(tmp_path)


@pytest.mark.parametrize("name", LANGUAGES)
def test_without_a_targets_language_it_is_the_sources(tmp_path: Path, name: str) -> None:
    write_tokenizer_folder(tmp_path, name, src_lang=LANGUAGES[name][0])
    assert_targets_equal_transformers(tmp_path, SOME_TEXTS)
    assert load_target_tokenizer(tmp_path, VOCAB_SIZE, lowercase=False) is None


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("MBartTokenizer", "src_lang"),
        ("MBart50Tokenizer", "tgt_lang"),
        ("NllbTokenizer", "tgt_lang"),
    ],
)
def test_a_language_is_one_of_the_vocabulary(tmp_path: Path, name: str, setting: str) -> None:
    source, target = LANGUAGES[name]
    languages = {"src_lang": source, "tgt_lang": target} | {setting: "xx_XX"}
    write_tokenizer_folder(tmp_path, name, **languages)
    said = f"{setting} of tokenizer_config.json is 'xx_XX'; set it to a language"
    with pytest.raises(CheckpointError, match=said):
        load_target_tokenizer(tmp_path, VOCAB_SIZE, lowercase=False)


def test_a_class_whose_targets_are_like_its_sources(tmp_path: Path) -> None:
    write_tokenizer_folder(tmp_path, "T5Tokenizer")
    assert load_target_tokenizer(tmp_path, VOCAB_SIZE, lowercase=False) is None
