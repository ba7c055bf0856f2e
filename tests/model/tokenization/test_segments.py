"""Tokenizers that return segments, against transformers' own with their models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    ElectraConfig,
    ElectraModel,
    NomicBertConfig,
    NomicBertModel,
)

from model.checkpoint import load_checkpoint
from model.errors import CheckpointError
from model.families.registry import read_config
from model.numerics.batch import pack
from model.packing import PackedBatch
from model.tokenization.segments import hands_segments, reading_segments
from model.tokenization.tokenizer import load_tokenizer
from tests.model.checkpoints import edit_json
from tests.model.families.parity import SIZES, randomized
from tests.model.tokenizer_folders import CLASSES, VOCAB_SIZE, write_tokenizer_folder

WIDE = SIZES | {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 64, "type_vocab_size": 2}
DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8}
FAMILIES: dict[str, tuple[Any, str, bool]] = {
    "albert": (AlbertModel(AlbertConfig(**WIDE, embedding_size=16)), "AlbertTokenizer", False),
    "bert": (BertModel(BertConfig(**WIDE)), "BertTokenizer", True),
    "deberta-v2": (
        DebertaV2Model(DebertaV2Config(**WIDE, **DISENTANGLED)),
        *("DebertaV2Tokenizer", True),
    ),
    "electra": (ElectraModel(ElectraConfig(**WIDE, embedding_size=16)), "BertTokenizer", True),
    "nomic_bert": (NomicBertModel(NomicBertConfig(**WIDE)), "BertTokenizer", True),
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
    model, tokenizer, segments = FAMILIES[family]
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
