from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import DistilBertConfig, DistilBertModel

from tests.model.families.parity import SIZES, assert_equal_to

TINY = {
    "vocab_size": SIZES["vocab_size"],
    "dim": 24,
    "n_layers": 3,
    "n_heads": 3,
    "hidden_dim": 40,
    "max_position_embeddings": 48,
}


@pytest.mark.parametrize(
    "changes",
    [{}, {"n_heads": 2, "n_layers": 1}, {"activation": "relu", "sinusoidal_pos_embds": True}],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    encoder = assert_equal_to(DistilBertModel(DistilBertConfig(**TINY | changes)), tmp_path)
    assert encoder.config.type_vocab_size == 0
