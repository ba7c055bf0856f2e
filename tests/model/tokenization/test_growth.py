"""Bounds of a tokenizer's rules, against the library's results."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, normalizers

from model.artifact.tokenizer import read_tokenizer
from model.errors import CheckpointError
from model.families.registry import parse_config
from model.tokenization.growth import Growth, growth
from model.tokenization.tokenizer import load_tokenizer
from tests.model.checkpoints import TINY, edit_json, write_tokenizer

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
