"""Each class of tokenizers, with files that differ from the class's own."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from model.errors import CheckpointError
from model.families.registry import parse_config
from model.tokenization.tokenizer import load_tokenizer
from tests.model.checkpoints import TINY, edit_json
from tests.model.tokenizer_folders import CLASSES, VOCAB_SIZE, write_tokenizer_folder
from tests.model.tokenizer_oracle import assert_equals_transformers

CONFIG = parse_config(TINY | {"model_type": "bert", "vocab_size": VOCAB_SIZE})
every_class = pytest.mark.parametrize("name", CLASSES)


@every_class
def test_a_tokenizer_as_transformers_saves_it(tmp_path: Path, name: str) -> None:
    assert_equals_transformers(write_tokenizer_folder(tmp_path, name), VOCAB_SIZE)


@every_class
def test_what_a_class_takes_for_granted(tmp_path: Path, name: str) -> None:
    """Default special tokens and flags, if the files only name the class."""
    write_tokenizer_folder(tmp_path, name)
    edit_json(tmp_path / "tokenizer.json", added_tokens=[])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    assert_equals_transformers(tmp_path, VOCAB_SIZE)


def sequence(name: str, type_id: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": type_id}}


FILES: dict[str, dict[str, Any]] = {
    "normalizer": {"normalizer": {"type": "Lowercase"}},
    "no normalizer": {"normalizer": None},
    "pre-tokenizer": {"pre_tokenizer": {"type": "Whitespace"}},
    "no post-processor": {"post_processor": None},
    "post-processor": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [sequence("A", 1), {"SpecialToken": {"id": "x", "type_id": 0}}],
            "pair": [sequence("B", 1), sequence("A", 0)],
            "special_tokens": {"x": {"id": "x", "ids": [7, 8], "tokens": ["x", "y"]}},
        }
    },
}  # fmt: skip


@every_class
@pytest.mark.parametrize("change", FILES.values(), ids=FILES.keys())
def test_only_some_parts_of_tokenizer_json_count(
    tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    """The class determines them, as in transformers."""
    write_tokenizer_folder(tmp_path, name)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | change))
    assert_equals_transformers(tmp_path, VOCAB_SIZE)


@pytest.mark.parametrize("name", ["BertTokenizer", "RobertaTokenizer", "GemmaTokenizer"])
def test_a_class_may_take_another_models_vocabulary(tmp_path: Path, name: str) -> None:
    """Pieces by their ids, without merges."""
    write_tokenizer_folder(tmp_path, "XLMRobertaTokenizer", tokenizer_class=name, unk_token="<unk>")
    edit_json(tmp_path / "config.json", model_type="bert")
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


# ── what is refused ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["XLMRobertaTokenizer", "AlbertTokenizer", "DebertaV2Tokenizer"])
def test_a_vocabulary_without_scores_makes_no_sentence_pieces(tmp_path: Path, name: str) -> None:
    write_tokenizer_folder(tmp_path, "RobertaTokenizer", tokenizer_class=name)
    with pytest.raises(TypeError):
        AutoTokenizer.from_pretrained(tmp_path)
    message = f"{name} has a Unigram vocabulary, tokenizer.json holds another"
    refused(tmp_path, message)


def refused(folder: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        load_tokenizer(folder, CONFIG, lowercase=False)
    assert "\n" not in str(caught.value)
