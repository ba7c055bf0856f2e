from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from model.checkpoint import load_checkpoint
from tests.model.families.parity import SIZES, assert_equal_to, saved

TINY = SIZES | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden_act": "gelu", "num_attention_heads": 2},
        {"layer_norm_eps": 1e-3, "num_hidden_layers": 1, "intermediate_size": 24},
    ],
    ids=str,
)
def test_the_text_tower_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    encoder = assert_equal_to(CLIPTextModel(CLIPTextConfig(**TINY | changes)), tmp_path)
    assert encoder.config.attention.causal


def test_keys_of_a_projection_are_outside_the_tower(tmp_path: Path) -> None:
    load_checkpoint(saved(CLIPTextModelWithProjection(CLIPTextConfig(**TINY)), tmp_path))
