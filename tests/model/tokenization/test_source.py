"""Each class of tokenizers, from files that differ from what the class would have written."""

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
from model.tokenizer import load_tokenizer
from tests.model.checkpoints import TINY, edit_json
from tests.model.tokenizer_folders import CLASSES, VOCAB_SIZE, write_tokenizer_folder
from tests.model.tokenizer_oracle import assert_equals_transformers

CONFIG = parse_config(TINY | {"model_type": "bert", "vocab_size": VOCAB_SIZE})
every_class = pytest.mark.parametrize("name", CLASSES)


@every_class
def test_a_tokenizer_as_transformers_saves_it(tmp_path: Path, name: str) -> None:
    assert_equals_transformers(write_tokenizer_folder(tmp_path, name), VOCAB_SIZE)


FILES: dict[str, dict[str, Any]] = {
    "normalizer": {"normalizer": {"type": "Lowercase"}},
    "no normalizer": {"normalizer": None},
    "pre-tokenizer": {"pre_tokenizer": {"type": "Whitespace"}},
    "no post-processor": {"post_processor": None},
    "post-processor": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 1}}, {"SpecialToken": {"id": "x", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "B", "type_id": 1}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"x": {"id": "x", "ids": [7, 8], "tokens": ["x", "y"]}},
        }
    },
}  # fmt: skip


@every_class
@pytest.mark.parametrize("change", FILES.values(), ids=FILES.keys())
def test_only_some_parts_of_tokenizer_json_count(
    tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    """Which of them is the class's choice, and transformers the oracle."""
    write_tokenizer_folder(tmp_path, name)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | change))
    assert_equals_transformers(tmp_path, VOCAB_SIZE)


FLAGS = [
    ("BertTokenizer", {"do_lower_case": False, "strip_accents": True}),
    ("MPNetTokenizer", {"do_lower_case": False}),
    ("MPNetTokenizer", {"strip_accents": False, "tokenize_chinese_chars": False}),
    ("RobertaTokenizer", {"add_prefix_space": True}),
    ("RobertaTokenizer", {"trim_offsets": False}),
    ("RobertaTokenizer", {"add_prefix_space": True, "trim_offsets": False}),
    ("XLMRobertaTokenizer", {"add_prefix_space": False}),
    ("CamembertTokenizer", {"add_prefix_space": False}),
    ("AlbertTokenizer", {"do_lower_case": False}),
    ("AlbertTokenizer", {"keep_accents": True}),
    ("AlbertTokenizer", {"add_prefix_space": False, "trim_offsets": False}),
    ("DebertaV2Tokenizer", {"do_lower_case": True}),
    ("DebertaV2Tokenizer", {"split_by_punct": True}),
    ("DebertaV2Tokenizer", {"add_prefix_space": False}),
    ("DebertaV2Tokenizer", {"unk_id": 2, "unk_token": "<oov>"}),
    ("Qwen2Tokenizer", {"add_prefix_space": True}),
    ("Qwen2Tokenizer", {"add_bos_token": True, "bos_token": "<|im_start|>"}),
    ("GemmaTokenizer", {"add_bos_token": True, "add_eos_token": True}),
    ("TokenizersBackend", {"add_prefix_space": True, "do_lower_case": True}),
    ("TokenizersBackend", {"add_bos_token": True, "bos_token": "[CLS]"}),
]


@pytest.mark.parametrize(("name", "flags"), FLAGS, ids=str)
def test_flags_of_each_class(tmp_path: Path, name: str, flags: dict[str, Any]) -> None:
    assert_equals_transformers(write_tokenizer_folder(tmp_path, name, **flags), VOCAB_SIZE)


@pytest.mark.parametrize(
    ("name", "special"),
    [("XLMRobertaTokenizer", 3), ("CamembertTokenizer", 1), ("AlbertTokenizer", 0)],
)
def test_the_piece_of_unknown_characters(tmp_path: Path, name: str, special: int) -> None:
    """Where a vocabulary has it elsewhere: XLM-R and ALBERT take its usual id all the same."""
    write_tokenizer_folder(tmp_path, name)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    pieces = content["model"]["vocab"]
    unknown = next(index for index, (piece, _) in enumerate(pieces) if piece == "<unk>")
    pieces[unknown], pieces[special + 10] = pieces[special + 10], pieces[unknown]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"added_tokens": []}))
    assert_equals_transformers(tmp_path, VOCAB_SIZE)


def test_merges_may_be_texts(tmp_path: Path) -> None:
    """As tokenizers wrote them before 0.20."""
    write_tokenizer_folder(tmp_path, "RobertaTokenizer")
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert_equals_transformers(tmp_path, VOCAB_SIZE)


@pytest.mark.parametrize("name", ["BertTokenizer", "RobertaTokenizer", "GemmaTokenizer"])
def test_a_class_may_take_another_models_vocabulary(tmp_path: Path, name: str) -> None:
    """Pieces by their ids, and no merges."""
    write_tokenizer_folder(tmp_path, "XLMRobertaTokenizer", tokenizer_class=name, unk_token="<unk>")
    edit_json(tmp_path / "config.json", model_type="bert")
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
    """The files of before tokenizer.json, and not that."""
    Tokenizer.from_file(str(folder / "tokenizer.json")).model.save(str(folder))
    (folder / "tokenizer.json").unlink()


CHARACTERS = st.one_of(
    st.sampled_from([" ", "  ", "\n", "\t", "▁", "\u200b", "\u200d", "\u0301", "ﬁ", "Ａ", "İ", "ß"]),
    st.sampled_from(["<s>", " <mask>", "[MASK]", "</s>", "<|endoftext|>", "<0x41>", "<unk>", "##a"]),
    st.sampled_from(["the", " river", "'ll", "``", "''", "👩\u200d👩", "字", "мир", "שלום", "ไทย", "१२"]),
    st.characters(exclude_categories=["Cs"]),
)  # fmt: skip
STRINGS = st.lists(CHARACTERS, max_size=24).map("".join)


@functools.cache
def loaded(name: str) -> tuple[Tokenizer, Any]:
    """Ours and transformers', of a class."""
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
    message = f"a {name} has a Unigram vocabulary, tokenizer.json holds another"
    refused(tmp_path, message)


def refused(folder: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        load_tokenizer(folder, CONFIG, lowercase=False)
    assert "\n" not in str(caught.value)
