"""Files and classes of tokenizers, against transformers' AutoTokenizer; bounds of their rules."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, normalizers
from transformers import AutoTokenizer

from model.errors import CheckpointError
from model.families.registry import parse_config
from model.tokenization.files import TokenizerFiles
from model.tokenization.growth import Growth, growth
from model.tokenization.pretrained import backend_class, class_name
from model.tokenization.tokenizer import load_tokenizer
from model.tokenization.vocabulary import read_tokenizer
from tests.model.checkpoints import TINY, edit_json, write_tokenizer
from tests.model.refusals import refused
from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder
from tests.model.tokenizer_oracle import SOME_TEXTS, assert_equals_transformers

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
    return refused(
        CheckpointError, folder, lambda: TokenizerFiles.read(folder).require("Tokenizer", files)
    )


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


def class_refusal(folder: Path) -> str:
    return refused(CheckpointError, folder, load_tokenizer, folder, CONFIG, lowercase=False)


@pytest.mark.parametrize(
    "name", ["EsmTokenizer", "Speech2TextTokenizerFast", "AutoModel", "Trainer"]
)
def test_a_class_without_a_fast_tokenizer_is_refused(tmp_path: Path, name: str) -> None:
    write_case(tmp_path, "bert", {"tokenizer_class": name}, {})
    name = name.removesuffix("Fast")
    message = class_refusal(tmp_path)
    assert f"{name} is not supported" in message
    assert "set tokenizer_class to PreTrainedTokenizerFast in tokenizer_config.json" in message
    (tmp_path / "tokenizer.json").unlink()
    assert f"no tokenizer.json, which a {name} needs" in class_refusal(tmp_path)


def test_code_of_the_checkpoints_own_is_not_run(tmp_path: Path) -> None:
    write_case(tmp_path, "nobodys", {"tokenizer_class": "Unheard", "auto_map": OWN_CODE}, {})
    with pytest.raises(ValueError, match="trust_remote_code"):
        AutoTokenizer.from_pretrained(tmp_path)
    assert "code of its own (auto_map), which is not run" in class_refusal(tmp_path)


def test_a_name_of_config_json_has_to_be_known(tmp_path: Path) -> None:
    write_case(tmp_path, "nobodys", {}, {"tokenizer_class": "Unheard"})
    with pytest.raises(AttributeError):
        AutoTokenizer.from_pretrained(tmp_path)
    assert "Unheard, which transformers does not have" in class_refusal(tmp_path)


@pytest.mark.parametrize(
    ("model_type", "settings", "reason"),
    [
        ("nobodys", {}, "names no tokenizer_class; set one in tokenizer_config.json"),
        ("bert", {"tokenizer_class": ["A"]}, "tokenizer_class is ['A'], not a name"),
    ],
)
def test_a_class_needs_a_name(
    tmp_path: Path, model_type: str, settings: dict[str, Any], reason: str
) -> None:
    write_case(tmp_path, model_type, settings, {})
    assert reason in class_refusal(tmp_path)


THOUSAND = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
GROWING = {"type": "Sequence", "normalizers": [THOUSAND] * 6}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    edit_json(tmp_path / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    edit_json(tmp_path / "config.json", **TINY, model_type="bert")
    return tmp_path


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (normalizers.Replace("a", "bcd"), "aaaa"),
        (normalizers.Replace("ab", "bcd"), "abab"),
        (normalizers.Replace(Regex("a+"), "bcd"), "a"),
        (normalizers.Replace(Regex("a*"), "bcd"), "xx"),
        (normalizers.Replace(Regex("(?=a)"), "bcd"), "aa"),
        (normalizers.Replace(Regex(r"\b"), "bcd"), "a a"),
        (normalizers.Replace(Regex("$|x"), "bcd"), "a"),
        (normalizers.Replace(Regex("a(?=a)"), "bcd"), "aaaa"),
        (normalizers.Replace(Regex(r"\Aa"), "bcd"), "aa"),
        (normalizers.Replace(Regex(r"\Ab|(?=a)"), "bcd"), "aa"),
        (normalizers.Replace(Regex(r"(?:\A|)"), "bcd"), "aa"),
        (normalizers.Prepend("▁▁"), "a"),
        (normalizers.ByteLevel(), "𝄞"),
        (normalizers.Sequence([normalizers.Replace("a", "aa")] * 5), "aa"),
        (normalizers.Sequence([normalizers.Replace(Regex("(?=a)"), "a")] * 5), "aa"),
        (normalizers.NFC(), "a"),
    ],
    ids=str,
)
def test_no_text_grows_more(step: normalizers.Normalizer, text: str) -> None:
    made = step.normalize_str(text)
    bound = growth(json.loads(step.__getstate__()))
    assert bound.factor * len(text) + bound.added >= len(made)


@pytest.mark.parametrize(
    "step",
    [None, 3, {}, {"type": "Replace"}, {"type": "Sequence", "normalizers": {}}, {"type": "Replace",
     "pattern": {"Regex": "["}, "content": ""}, {"type": "Precompiled",
     "precompiled_charsmap": "?"}],
    ids=str,
)  # fmt: skip
def test_what_the_library_refuses_counts_as_nothing(step: Any) -> None:
    assert growth(step) == Growth()


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_a_tokenizer_that_grows_texts_is_refused_before_it_is_built(
    folder: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = GROWING if part == "normalizer" else {"type": "Sequence", "decoders": [THOUSAND] * 6}
    added = {"id": 40, "content": "a", "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": True, "special": False}  # fmt: skip
    edit_json(folder / "tokenizer.json", **{part: steps, "added_tokens": [added]})
    monkeypatch.setattr(Tokenizer, "from_file", None)  # it would normalise the added token
    said = rf"the tokenizer's {part} can make 1e\+18 characters of one: at most 512, .*; remove"
    with pytest.raises(CheckpointError, match=said):
        load_tokenizer(folder, parse_config({**TINY, "model_type": "bert"}), lowercase=False)
    with pytest.raises(CheckpointError, match=said):
        read_tokenizer(folder / "tokenizer.json")


def test_a_long_chain_takes_no_time(folder: Path) -> None:
    steps = {"type": "Sequence", "normalizers": [THOUSAND] * 10_000}
    started = time.monotonic()
    assert growth(steps).factor == 1e300
    assert time.monotonic() - started < 10
