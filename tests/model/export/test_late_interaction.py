"""Ids of words in a late-interaction model's files, and errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from model.errors import CheckpointError, ConfigError
from model.export.loading import load_modules
from model.families.registry import read_config
from model.numerics.late_interaction import LateInteraction
from model.tokenization.tokenizer import load_tokenizer
from tests.model.checkpoints import edit_json, edit_weights
from tests.model.late_checkpoints import EXPANSION, WORDS, write_late, write_pylate, write_stanford


def late_of(folder: Path) -> LateInteraction:
    tokenizer = load_tokenizer(folder, read_config(folder), lowercase=False)
    _, head, _ = load_modules(folder, tokenizer)
    assert head is not None
    assert head.config.late is not None
    return head.config.late


def test_words_are_ids(tmp_path: Path) -> None:
    late = late_of(write_late(tmp_path / "model", skipped=[".", "!", "nothing", "[UNK]"]))
    assert late.skipped_ids == tuple(sorted(map(WORDS.index, (".", "!", "[UNK]"))))
    assert late.query_tokens == 12
    assert late.expansion is not None
    assert late.expansion.token_id == WORDS.index("[MASK]")
    assert (late.expansion.fixed, late.expansion.attended) == (True, False)


@pytest.mark.parametrize(
    ("write", "file", "changes", "part"),
    [
        (
            write_pylate,
            "config_sentence_transformers.json",
            {"query_length": 41},
            "longer than the",
        ),
        (
            write_late,
            "sentence_bert_config.json",
            {"query_length": 5},
            "query_length 5 is less than query_expansion's 12",
        ),
        (
            write_late,
            "sentence_bert_config.json",
            {"query_expansion": {**EXPANSION, "token": "no such"}},
            "needs a token that the tokenizer has, not 'no such'",
        ),
        (
            lambda path: write_late(path, "DebertaV2"),
            "sentence_bert_config.json",
            {},
            "without attention to it is not supported for deberta-v2",
        ),
        (write_late, "1_Dense/config.json", {"in_features": 7}, "sizes of its modules do not fit"),
    ],
)
def test_refusals(
    tmp_path: Path, write: Callable[[Path], Path], file: str, changes: Any, part: str
) -> None:
    folder = write(tmp_path / "model")
    edit_json(folder / file, **changes)
    with pytest.raises(ConfigError, match=part) as failed:
        late_of(folder)
    assert "\n" not in str(failed.value)


def test_a_projection_that_does_not_fit(tmp_path: Path) -> None:
    folder = write_stanford(tmp_path / "model")
    edit_weights(folder, **{"linear.weight": torch.zeros(7, 12)})
    with pytest.raises(CheckpointError, match=r"steps\.0\.linear\.weight is \(7, 12\) instead of"):
        late_of(folder)
