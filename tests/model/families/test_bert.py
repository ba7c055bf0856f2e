"""Keys of BERT; `tests.model.test_checkpoint` compares whole checkpoints with transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoint import load_checkpoint
from model.errors import CheckpointError
from model.families.bert import BERT
from model.families.registry import read_config
from model.sources.headers import check_weights
from tests.model.families.jina_bert import JinaBert
from tests.model.families.parity import SIZES, assert_equal_to


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("bert.embeddings.word_embeddings.weight", "embeddings.word.weight"),
        ("embeddings.LayerNorm.gamma", "embeddings.layer_norm.weight"),
        ("encoder.layer.11.attention.self.key.bias", "layers.11.attention.key.bias"),
        ("encoder.layer.0.attention.output.dense.weight", "layers.0.attention.output.weight"),
        ("encoder.layer.0.attention.output.LayerNorm.beta", "layers.0.attention_norm.bias"),
        ("encoder.layer.0.output.dense.weight", "layers.0.feed_forward.contract.weight"),
        (
            "encoder.layer.2.attention.self.score.vector",
            "layers.2.attention.score_parameters.vector",
        ),
        ("bert.pooler.dense.weight", None),
        ("cls.predictions.transform.LayerNorm.gamma", None),
        ("something.else", "something.else"),
    ],
)
def test_keys_are_renamed(key: str, expected: str | None) -> None:
    assert BERT.encoder_key(key) == expected


@pytest.mark.parametrize("feed_forward", ["geglu", "reglu"])
@pytest.mark.parametrize("heads", [2, 3])
def test_jina_bert_equals_its_description(tmp_path: Path, feed_forward: str, heads: int) -> None:
    reference: Any = JinaBert(SIZES | {"num_attention_heads": heads}, feed_forward)
    encoder = assert_equal_to(reference, tmp_path)
    assert encoder.config.attention.alibi
    assert encoder.config.embeddings.positions == "none"


@pytest.mark.parametrize("norm", ["layer_norm_q", "layer_norm_k"])
def test_a_jina_bert_with_norms_of_queries_and_keys_is_refused(tmp_path: Path, norm: str) -> None:
    JinaBert(SIZES).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    key = f"encoder.layer.1.attention.self.{norm}.weight"
    save_file(load_file(weights) | {key: torch.ones(SIZES["hidden_size"])}, weights)
    message = f"holds {key}: it is a JinaBERT that normalises queries and keys"
    config = read_config(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        check_weights(tmp_path, [weights], config)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path, config)
