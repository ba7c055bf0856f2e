from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import ModernBertConfig, ModernBertModel

from model.families.registry import parse_config
from tests.model.families.parity import SIZES, assert_equal_to

TINY = SIZES | {
    "num_hidden_layers": 5,
    "local_attention": 12,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "cls_token_id"), 0),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_bias": True, "attention_bias": True, "mlp_bias": True},
        {
            "num_attention_heads": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_hidden_layers": 4,
            "local_attention": 7,
        },
        {"layer_types": ["full_attention"] * 5, "hidden_activation": "silu"},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    ],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    assert_equal_to(ModernBertModel(ModernBertConfig(**TINY | changes)), tmp_path)


def test_texts_far_longer_than_a_window_equal_transformers(tmp_path: Path) -> None:
    config = ModernBertConfig(**TINY | {"max_position_embeddings": 8192, "num_hidden_layers": 2})
    assert_equal_to(ModernBertModel(config), tmp_path, (300, 3, 41))


def test_an_older_config_is_read() -> None:
    older = TINY | {
        "model_type": "modernbert",
        "global_attn_every_n_layers": 2,
        "global_rope_theta": 500.0,
        "local_rope_theta": 50.0,
    }
    attention = parse_config(older).attention
    assert attention.windows == (None, 6, None, 6, None)
    assert attention.rotary_bases == (500.0, 50.0, 500.0, 50.0, 500.0)
    scaled = parse_config(older | {"rope_scaling": {"type": "yarn", "factor": 4.0}}).attention
    assert {scaling and scaling.kind for scaling in scaled.rotary_scalings} == {"yarn"}
