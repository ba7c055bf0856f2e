"""Classes of folders' tokenizers, against transformers' AutoTokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from model.errors import CheckpointError
from model.families.registry import parse_config
from model.tokenization.classes import backend_class, class_name
from model.tokenization.files import TokenizerFiles
from model.tokenization.tokenizer import load_tokenizer
from tests.model.checkpoints import TINY, edit_json
from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder
from tests.model.tokenizer_oracle import SOME_TEXTS, assert_equals_transformers

CONFIG = parse_config(TINY | {"model_type": "bert", "vocab_size": VOCAB_SIZE})

OWN_CODE = {"AutoTokenizer": ["code.Slow", "code.Fast"]}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("bert", {}, {}),
    ("bert", {"tokenizer_class": "RobertaTokenizer"}, {}),
    ("bert", {"tokenizer_class": "RobertaTokenizerFast"}, {}),
    ("bert", {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
    ("bert", {"tokenizer_class": "PreTrainedTokenizer"}, {}),
    ("bert", {"tokenizer_class": "Unheard"}, {}),
    ("bert", {}, {"tokenizer_class": "Unheard"}),
    ("bert", {}, {"tokenizer_class": "RobertaTokenizer"}),
    ("bert", {"tokenizer_class": "BertTokenizer"}, {"tokenizer_class": "RobertaTokenizer"}),
    ("roberta", {}, {}),
    ("roberta", {"tokenizer_class": "LongformerTokenizerFast"}, {}),
    ("roberta", {"tokenizer_class": "BertTokenizer"}, {"model_name": "camembertv2-base"}),
    ("distilbert", {"tokenizer_class": "DistilBertTokenizer"}, {}),
    ("electra", {"tokenizer_class": "ElectraTokenizerFast"}, {}),
    ("nomic_bert", {}, {}),
    ("modernbert", {}, {}),
    ("modernbert", {"tokenizer_class": "RobertaTokenizer"}, {}),
    ("modernbert", {"tokenizer_class": "RobertaTokenizer", "auto_map": OWN_CODE}, {}),
    ("nystromformer", {"tokenizer_class": "RobertaTokenizer"}, {}),
    ("qwen2", {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
    ("qwen2", {"tokenizer_class": "RobertaTokenizer"}, {}),
    ("qwen2", {"tokenizer_class": "RobertaTokenizer", "auto_map": OWN_CODE}, {}),
    ("qwen2", {"auto_map": OWN_CODE}, {}),
    ("mistral", {"tokenizer_class": "LlamaTokenizer", "add_eos_token": True}, {}),
    ("qwen2", {"auto_map": OWN_CODE, "add_eos_token": True, "eos_token": "</s>"}, {}),
    ("eurobert", {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
    ("qwen3", {}, {}),
    ("qwen3", {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
    ("qwen3", {"tokenizer_class": "Qwen2TokenizerFast", "auto_map": OWN_CODE}, {}),
    ("gemma3_text", {"tokenizer_class": "GemmaTokenizerFast"}, {}),
    ("gemma3_text", {}, {}),
    ("roberta", {"tokenizer_class": "Unheard", "auto_map": OWN_CODE}, {}),
    ("roberta", {"tokenizer_class": "Unheard", "auto_map": {"AutoModel": "code.M"}}, {}),
    ("bert", {"tokenizer_class": "LlamaTokenizerFast"}, {}),
    ("bert", {"tokenizer_class": "GPT2Tokenizer"}, {}),
    ("nobodys", {"tokenizer_class": "RobertaTokenizer"}, {}),
    ("nobodys", {"tokenizer_class": "Unheard"}, {}),
    ("nobodys", {}, {"tokenizer_class": "RobertaTokenizerFast"}),
    ("nobodys", {"tokenizer_class": "RobertaTokenizer", "auto_map": OWN_CODE}, {}),
]


def write_case(
    folder: Path, model_type: str, settings: dict[str, Any], config: dict[str, Any]
) -> None:
    """Write a file that each class reads differently: byte pairs, and lower-cased."""
    write_tokenizer_folder(folder, "RobertaTokenizer")
    edit_json(folder / "tokenizer.json", normalizer={"type": "Lowercase"})
    unknown = {"unk_token": "<unk>", "sep_token": "</s>", "cls_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(unknown | settings))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type} | config))


@pytest.mark.parametrize(("model_type", "settings", "config"), CASES, ids=str)
def test_the_class_is_transformers(
    tmp_path: Path, model_type: str, settings: dict[str, Any], config: dict[str, Any]
) -> None:
    write_case(tmp_path, model_type, settings, config)
    ours = assert_equals_transformers(tmp_path, VOCAB_SIZE, SOME_TEXTS)
    files = TokenizerFiles.read(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert backend_class(files, class_name(files)) is type(theirs)
    assert ours.get_vocab_size() > 256


# ── what is refused ────────────────────────────────────────────────────────────────────────


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(folder, CONFIG, lowercase=False)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


@pytest.mark.parametrize(
    "name", ["EsmTokenizer", "Speech2TextTokenizerFast", "AutoModel", "Trainer"]
)
def test_a_class_without_a_fast_tokenizer_is_refused(tmp_path: Path, name: str) -> None:
    write_case(tmp_path, "bert", {"tokenizer_class": name}, {})
    name = name.removesuffix("Fast")
    message = refusal(tmp_path)
    assert f"{name} is not supported" in message
    assert "set tokenizer_class to PreTrainedTokenizerFast in tokenizer_config.json" in message
    (tmp_path / "tokenizer.json").unlink()
    assert f"no tokenizer.json, which a {name} needs" in refusal(tmp_path)


def test_code_of_the_checkpoints_own_is_not_run(tmp_path: Path) -> None:
    write_case(tmp_path, "nobodys", {"tokenizer_class": "Unheard", "auto_map": OWN_CODE}, {})
    with pytest.raises(ValueError, match="trust_remote_code"):
        AutoTokenizer.from_pretrained(tmp_path)
    assert "code of its own (auto_map), which is not run" in refusal(tmp_path)


def test_a_name_of_config_json_has_to_be_known(tmp_path: Path) -> None:
    write_case(tmp_path, "nobodys", {}, {"tokenizer_class": "Unheard"})
    with pytest.raises(AttributeError):
        AutoTokenizer.from_pretrained(tmp_path)
    assert "Unheard, which transformers does not have" in refusal(tmp_path)


def test_a_model_type_that_is_not_known_needs_a_name(tmp_path: Path) -> None:
    write_case(tmp_path, "nobodys", {}, {})
    assert "names no tokenizer_class; set one in tokenizer_config.json" in refusal(tmp_path)


def test_a_name_is_a_text(tmp_path: Path) -> None:
    write_case(tmp_path, "bert", {"tokenizer_class": ["BertTokenizer"]}, {})
    assert "tokenizer_class is ['BertTokenizer'], not a name" in refusal(tmp_path)
