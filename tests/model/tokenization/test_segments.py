"""Tokenizers against transformers' own, with segments and templates of tokens and chats."""

from __future__ import annotations

import functools
import json
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, BertTokenizer

from model.checkpoint import load_checkpoint
from model.errors import CheckpointError, ConfigError
from model.families.registry import parse_config, read_config
from model.numerics.batch import pack
from model.packing import PackedBatch
from model.tokenization import chat_template
from model.tokenization.chat_template import answer, rendered
from model.tokenization.files import TokenizerFiles
from model.tokenization.pretrained import from_files
from model.tokenization.tokenizer import (
    check_template,
    hands_segments,
    load_tokenizer,
    reading_segments,
)
from tests.model.checkpoints import TINY, VOCABULARY, edit_json, write_tokenizer
from tests.model.families.parity import SIZES, model_of, randomized
from tests.model.tokenizer_folders import CLASSES, VOCAB_SIZE, write_tokenizer_folder
from tests.model.tokenizer_oracle import assert_equals_transformers

WIDE = SIZES | {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 64, "type_vocab_size": 2}
DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8}
FAMILIES: dict[str, tuple[dict[str, Any], str, bool]] = {
    "Albert": (WIDE | {"embedding_size": 16}, "AlbertTokenizer", False),
    "Bert": (WIDE, "BertTokenizer", True),
    "DebertaV2": (WIDE | DISENTANGLED, "DebertaV2Tokenizer", True),
    "Electra": (WIDE | {"embedding_size": 16}, "BertTokenizer", True),
    "NomicBert": (WIDE, "BertTokenizer", True),
}
INPUTS: list[Any] = [
    "the river runs",
    ("the river runs", "The cat looks at it"),
    ("", "a"),
    ("", ""),
]
NAMES = ["input_ids", "attention_mask"]


def states_are_transformers(folder: Path, model: Any) -> bool:
    """Compare hidden states of texts and pairs; return whether transformers' model got segments."""
    config = reading_segments(read_config(folder), folder)
    encoder, theirs = load_checkpoint(folder, config), AutoTokenizer.from_pretrained(folder)
    tokenizer = load_tokenizer(folder, config, lowercase=False)
    for text in INPUTS:
        given = theirs([text], return_tensors="pt")
        encoding = tokenizer.encode(*([text] if isinstance(text, str) else text))
        assert encoding.ids == given["input_ids"][0].tolist()
        packed = PackedBatch.of(pack([(encoding.ids, encoding.type_ids)]))
        with torch.inference_mode():
            expected = model(**given).last_hidden_state[0].numpy()
            found = encoder(packed).hidden_states[-1].numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
        assert config.knows_segment(max(encoding.type_ids))
    return "token_type_ids" in given


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pair_is_transformers(tmp_path: Path, family: str) -> None:
    fields, tokenizer, segments = FAMILIES[family]
    model = model_of(family, **fields)
    write_tokenizer_folder(tmp_path, tokenizer, model_max_length=64)
    randomized(model).save_pretrained(tmp_path)
    assert states_are_transformers(tmp_path, model) == segments
    names = NAMES if segments else [*NAMES, "token_type_ids"]
    edit_json(tmp_path / "tokenizer_config.json", model_input_names=names)
    assert states_are_transformers(tmp_path, model) != segments


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_hands_over_what_transformers_does(tmp_path: Path, name: str) -> None:
    theirs = AutoTokenizer.from_pretrained(write_tokenizer_folder(tmp_path, name))
    edit_json(tmp_path / "tokenizer_config.json", model_input_names=None)
    assert hands_segments(tmp_path) == ("token_type_ids" in theirs.model_input_names)


def test_a_tokenizer_json_as_it_stands_hands_over_none(tmp_path: Path) -> None:
    write_tokenizer_folder(tmp_path, "BertTokenizer", tokenizer_class="PreTrainedTokenizerFast")
    assert not hands_segments(tmp_path)
    assert "token_type_ids" not in AutoTokenizer.from_pretrained(tmp_path)("a", "b")


def test_names_are_a_list(tmp_path: Path) -> None:
    write_tokenizer_folder(tmp_path, "BertTokenizer", model_input_names="input_ids")
    with pytest.raises(CheckpointError, match=r"model_input_names .* is 'input_ids', not a list"):
        hands_segments(tmp_path)


CHATS = [[{"role": "query", "content": "a"}], [{"role": "query", "content": "é\n"}]]


def test_special_tokens_and_messages_are_variables() -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    expected = ["<s>query: a", "<s>query: é\n"]
    assert rendered(template, CHATS, {"bos_token": "<s>"}) == expected


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{ raise_exception('no\nroles') }}", "no roles"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "'__class__' of 'list' object"),
    ],
)
def test_errors_are_one_line(template: str, error: str) -> None:
    asked = {"template": template, "chats": CHATS, "tokens": {}}
    assert error in answer(asked)["error"]


def test_a_template_of_a_large_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^the chat template cannot be rendered: MemoryError"):
        rendered("{{ 'x' * 99999999999 }}", CHATS, {})


def test_a_template_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 1)
    loop = "{% for i in range(99999) %}"
    with pytest.raises(ConfigError, match="is not rendered within 1 s"):
        rendered(5 * loop + "x" + 5 * "{% endfor %}", CHATS, {})


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


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_settings_name_no_file_outside_the_folder(folder: Path, name: str) -> None:
    """transformers itself reads such a file into the vocabulary, which the service publishes."""
    edit_json(
        folder / name, **dict.fromkeys(("vocab", "vocab_file"), str(folder.parent / "secret"))
    )
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
