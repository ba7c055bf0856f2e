from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma3TextConfig, Gemma3TextModel

from model.errors import ConfigError
from model.families.registry import parse_config
from tests.model.families.parity import SIZES, assert_equal_to

TINY = SIZES | {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "sliding_window": 10,
    "sliding_window_pattern": 2,
    "use_bidirectional_attention": True,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"query_pre_attn_scalar": 20, "num_key_value_heads": 1, "hidden_activation": "silu"},
        {"use_bidirectional_attention": False},
        {"use_bidirectional_attention": False, "is_causal": False, "sliding_window": 5},
        {"is_causal": False},
        {"sliding_window": 1},  # which is written as 0
        {"layer_types": ["full_attention"] * 3, "attention_bias": True},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
            }
        },
    ],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    assert_equal_to(Gemma3TextModel(Gemma3TextConfig(**TINY | changes)), tmp_path)


def test_an_older_config_is_read() -> None:
    older = TINY | {"model_type": "gemma3_text", "rope_theta": 9e5, "rope_local_base_freq": 9e3}
    assert parse_config(older).attention.rotary_bases == (9e3, 9e5, 9e3)


def test_capped_scores_are_refused() -> None:
    with pytest.raises(ConfigError, match="attn_logit_softcapping"):
        parse_config(TINY | {"model_type": "gemma3_text", "attn_logit_softcapping": 50.0})
