"""Special and added tokens of each class, and the files that may name them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from model.errors import CheckpointError
from model.families.registry import parse_config
from model.tokenization.tokenizer import load_tokenizer
from tests.model.checkpoints import TINY, edit_json
from tests.model.tokenizer_folders import CLASSES, VOCAB_SIZE, write_tokenizer_folder
from tests.model.tokenizer_oracle import SOME_TEXTS, assert_equals_transformers

every_class = pytest.mark.parametrize("name", CLASSES)


def added(content: str, **fields: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"content": content} | flags | fields


ADDED = [
    added("cat.", normalized=True),
    added("[X]", special=True, lstrip=True, rstrip=True),
    added("THE", single_word=True),
    added("café", normalized=True, rstrip=True),
    added("<s>", lstrip=True, normalized=True),
    added("<mask>", special=True, single_word=True),
]


@every_class
def test_added_tokens_of_tokenizer_json(tmp_path: Path, name: str) -> None:
    write_tokenizer_folder(tmp_path, name, added_tokens_decoder=None)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["added_tokens"] += [{"id": 900 + i, **token} for i, token in enumerate(ADDED)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert_equals_transformers(tmp_path, VOCAB_SIZE, SOME_TEXTS)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    assert_equals_transformers(tmp_path, VOCAB_SIZE, SOME_TEXTS)


@every_class
def test_added_tokens_of_tokenizer_config(tmp_path: Path, name: str) -> None:
    tokens = {str(900 - i): token for i, token in enumerate(ADDED)}
    write_tokenizer_folder(tmp_path, name, added_tokens_decoder=tokens)
    edit_json(tmp_path / "special_tokens_map.json", sep_token="not read")
    assert_equals_transformers(tmp_path, VOCAB_SIZE, SOME_TEXTS)


SETTINGS: list[dict[str, Any]] = [
    {"mask_token": "the"},
    {"mask_token": {"__type": "AddedToken"} | added("<mask>", rstrip=True)},
    {"sep_token": "[X]", "eos_token": {"__type": "AddedToken"} | added("[E]", lstrip=True)},
    {"bos_token": "THE", "cls_token": "THE"},
    {"extra_special_tokens": ["<mask>", "[X]", {"__type": "AddedToken"} | added("cat.")]},
    {"extra_special_tokens": [], "additional_special_tokens": ["[X]"]},
    {"additional_special_tokens": None},
    {"extra_special_tokens": {"x_token": "[X]", "e_token": {"__type": "AddedToken"} | added("E")}},
    {"model_specific_special_tokens": {"x_token": "[X]"}, "extra_special_tokens": None},
    {"model_specific_special_tokens": {"x_token": "[X]"}, "y_token": "café"},
    {"y_token": {"__type": "AddedToken"} | added("café", single_word=True), "x_token": "[E]"},
]


@every_class
@pytest.mark.parametrize("decoder", ["kept", "taken out"])
def test_special_tokens_of_tokenizer_config(tmp_path: Path, name: str, decoder: str) -> None:
    write_tokenizer_folder(tmp_path, name)
    saved = json.loads((tmp_path / "tokenizer_config.json").read_text())
    if decoder == "kept":
        saved["added_tokens_decoder"] = {"3": added("<mask>", lstrip=True), "2": added("[X]")}
    for settings in SETTINGS:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(saved | settings))
        assert_equals_transformers(tmp_path, VOCAB_SIZE, SOME_TEXTS)


OLDER: list[dict[str, Any]] = [
    {"mask_token": {"content": "<mask>", "lstrip": True}, "sep_token": "[X]"},
    {"extra_special_tokens": ["[X]", {"content": "cat.", "rstrip": True}], "pad_token": None},
    {"extra_special_tokens": {"x_token": "[X]"}},
    {"additional_special_tokens": ["[X]", "THE"], "x_token": {"content": "[E]"}},
]


@every_class
def test_special_tokens_of_the_older_files(tmp_path: Path, name: str) -> None:
    write_tokenizer_folder(tmp_path, name, extra_special_tokens=["the"])
    edit_json(tmp_path / "added_tokens.json", **{"CAFÉ": 902, "[X]": 900, "[E]": 901})
    for settings in OLDER:
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(settings))
        assert_equals_transformers(tmp_path, VOCAB_SIZE, SOME_TEXTS)


@pytest.mark.parametrize("name", ["BertTokenizer", "MPNetTokenizer", "DebertaV2Tokenizer"])
def test_tokens_that_are_null(tmp_path: Path, name: str) -> None:
    write_tokenizer_folder(tmp_path, name)
    nothing = dict.fromkeys(("sep_token", "cls_token", "mask_token", "pad_token"))
    content = json.loads((tmp_path / "tokenizer_config.json").read_text()) | nothing
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))
    assert_equals_transformers(tmp_path, VOCAB_SIZE, SOME_TEXTS)


def test_the_padding_of_a_file_names_a_token(tmp_path: Path) -> None:
    write_tokenizer_folder(tmp_path, "TokenizersBackend", pad_token=None)
    padding = {
        "strategy": "BatchLongest",
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[E]",
    }
    edit_json(tmp_path / "tokenizer.json", padding=padding)
    ours = assert_equals_transformers(tmp_path, VOCAB_SIZE, SOME_TEXTS)
    assert ours.token_to_id("[E]") == 700


# ── what is refused, by transformers too ───────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("RobertaTokenizer", {"cls_token": None}, "the tokenizer's cls_token is null"),
        ("XLMRobertaTokenizer", {"eos_token": None}, "the tokenizer's eos_token is null"),
        ("CamembertTokenizer", {"bos_token": None}, "the tokenizer's bos_token is null"),
        ("AlbertTokenizer", {"sep_token": "[E]"}, "vocabulary lacks [E], its sep_token"),
        ("BertTokenizer", {"extra_special_tokens": "[X]"}, "extra_special_tokens is '[X]', not a"),
        ("BertTokenizer", {"extra_special_tokens": [{"x": 1}]}, "extra_special_tokens[0] is {'x'"),
        ("BertTokenizer", {"mask_token": ["x"]}, "mask_token is ['x'], not a token"),
        ("BertTokenizer", {"extra_special_tokens": {"x": None}}, "x is None, not a token"),
        ("BertTokenizer", {"init_inputs": [1]}, "init_inputs of tokenizer_config.json"),
    ],
)
def test_what_is_no_token_is_refused(
    tmp_path: Path, name: str, settings: dict[str, Any], reason: str
) -> None:
    write_tokenizer_folder(tmp_path, name)
    content = json.loads((tmp_path / "tokenizer_config.json").read_text()) | settings
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))
    with pytest.raises((TypeError, ValueError, AttributeError)):
        AutoTokenizer.from_pretrained(tmp_path)
    config = parse_config(TINY | {"model_type": "bert", "vocab_size": VOCAB_SIZE})
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(tmp_path, config, lowercase=False)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
