"""Tokenizers that transformers builds, and files that must not lead it elsewhere."""

from __future__ import annotations

import functools
import json
import socket
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertTokenizer

from model.errors import CheckpointError
from model.families.registry import parse_config
from model.tokenization.files import TokenizerFiles
from model.tokenization.pretrained import from_files
from model.tokenization.tokenizer import load_tokenizer
from tests.model.checkpoints import TINY, VOCABULARY, edit_json
from tests.model.tokenizer_folders import CLASSES, VOCAB_SIZE, write_tokenizer_folder
from tests.model.tokenizer_oracle import assert_equals_transformers

CONFIG = parse_config(TINY | {"model_type": "bert", "vocab_size": VOCAB_SIZE})
every_class = pytest.mark.parametrize("name", CLASSES)


@every_class
def test_a_tokenizer_as_transformers_saves_it(tmp_path: Path, name: str) -> None:
    assert_equals_transformers(write_tokenizer_folder(tmp_path, name), VOCAB_SIZE)


@every_class
def test_defaults_of_a_class(tmp_path: Path, name: str) -> None:
    """Files that only name the class."""
    write_tokenizer_folder(tmp_path, name)
    edit_json(tmp_path / "tokenizer.json", added_tokens=[])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    assert_equals_transformers(tmp_path, VOCAB_SIZE)


@every_class
def test_older_files_and_flags(tmp_path: Path, name: str) -> None:
    flags = {"do_lower_case": False, "add_prefix_space": True, "extra_ids": 3}
    write_tokenizer_folder(tmp_path, name, extra_special_tokens=["the"], x_token="[E]", **flags)
    edit_json(tmp_path / "tokenizer_config.json", added_tokens_decoder=None)
    edit_json(tmp_path / "added_tokens.json", **{"CAFÉ": 902, "[X]": 900, "_file": 901})
    mask = {"content": "<mask>", "lstrip": True}
    edit_json(tmp_path / "special_tokens_map.json", mask_token=mask, sep_token="[X]")
    assert_equals_transformers(tmp_path, VOCAB_SIZE)


CHARACTERS = st.one_of(
    st.sampled_from([" ", "  ", "\n", "\t", "▁", "\u200b", "\u200d", "\u0301", "ﬁ", "Ａ", "İ"]),
    st.sampled_from(["<s>", " <mask>", "[MASK]", "</s>", "<|endoftext|>", "<0x41>", "<unk>"]),
    st.sampled_from(["the", " river", "'ll", "``", "''", "##a", "👩\u200d👩", "字", "мир"]),
    st.sampled_from(["שלום", "ไทย", "१२"]),
    st.characters(exclude_categories=["Cs"]),
)  # fmt: skip
STRINGS = st.lists(CHARACTERS, max_size=24).map("".join)


@functools.cache
def loaded(name: str) -> tuple[Tokenizer, Any]:
    """Load our and transformers' tokenizer of a class."""
    with TemporaryDirectory() as folder:
        write_tokenizer_folder(Path(folder), name)
        ours = load_tokenizer(Path(folder), CONFIG, lowercase=False)
        return ours, AutoTokenizer.from_pretrained(folder)


@every_class
@settings(max_examples=25)
@given(text=STRINGS, other=STRINGS)
def test_any_text_of_any_class(name: str, text: str, other: str) -> None:
    ours, theirs = loaded(name)
    for batch in ([text], [(text, other)]):
        expected = theirs(batch, return_offsets_mapping=True, return_token_type_ids=True)
        (found,) = ours.encode_batch(batch)
        assert [found.ids] == expected["input_ids"]
        assert [found.offsets] == expected["offset_mapping"]
        assert [found.type_ids] == expected["token_type_ids"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of a BERT tokenizer with a vocab.txt, and a file outside it."""
    (folder := tmp_path / "checkpoint").mkdir()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    (folder / "tokenizer_config.json").write_text("{}")
    (tmp_path / "secret").write_text("\n".join([*VOCABULARY[:5], "password"]))
    return folder


Write = Callable[[Path, str], None]


def as_settings(folder: Path, outside: str) -> None:
    edit_json(folder / "tokenizer_config.json", vocab=outside, vocab_file=outside)


def as_special_tokens(folder: Path, outside: str) -> None:
    edit_json(folder / "special_tokens_map.json", vocab=outside, vocab_file=outside)


@pytest.mark.parametrize("write", [as_settings, as_special_tokens])
def test_settings_name_no_file_outside_the_folder(folder: Path, write: Write) -> None:
    """transformers itself reads such a file into the vocabulary, which the service publishes."""
    write(folder, str(folder.parent / "secret"))
    assert "password" in BertTokenizer.from_pretrained(folder).get_vocab()
    assert from_files(BertTokenizer, TokenizerFiles.read(folder)).vocab_size == len(VOCABULARY)


def test_nothing_is_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("a connection to the hub")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    names = {"name_or_path": "bert-base-uncased", "local_files_only": False, "is_local": False}
    edit_json(folder / "tokenizer_config.json", gguf_file="x.gguf", trust_remote_code=True, **names)
    words = from_files(BertTokenizer, TokenizerFiles.read(folder))
    assert words.vocab_size == len(VOCABULARY)


def test_tokens_that_transformers_would_compare_for_hours(folder: Path) -> None:
    added = {str(1000 + index): {"content": f"<{index}>"} for index in range(40_000)}
    special = [f"[{index}]" for index in range(2000)]
    tokens = {"added_tokens_decoder": added, "extra_special_tokens": special}
    edit_json(folder / "tokenizer_config.json", **tokens)
    with pytest.raises(CheckpointError, match="2000 special tokens among 42000 added tokens are"):
        from_files(BertTokenizer, TokenizerFiles.read(folder))
