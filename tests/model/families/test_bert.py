"""Keys of BERT; `tests.model.test_checkpoint` compares whole checkpoints with transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model.families.bert import BERT
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
