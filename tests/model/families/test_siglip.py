from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import SiglipTextConfig, SiglipTextModel

from tests.model.families.parity import SIZES, assert_equal_to

TINY = SIZES | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden_act": "gelu", "num_attention_heads": 2},
        {"layer_norm_eps": 1e-3, "num_hidden_layers": 1, "projection_size": 7},
    ],
    ids=str,
)
def test_the_text_tower_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    encoder = assert_equal_to(SiglipTextModel(SiglipTextConfig(**TINY | changes)), tmp_path)
    assert not encoder.config.attention.causal
