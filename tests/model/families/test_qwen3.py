from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3Config, Qwen3Model

from model.errors import ConfigError
from model.families.registry import parse_config
from tests.model.families.parity import SIZES, assert_equal_to

TINY = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 1, "head_dim": 10, "attention_bias": True},
        {"num_key_value_heads": 4, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
        | {"is_causal": False, "pad_token_id": None},
    ],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    encoder = assert_equal_to(Qwen3Model(Qwen3Config(**TINY | changes)), tmp_path)
    assert encoder.config.attention.causal is changes.get("is_causal", True)


@pytest.mark.parametrize("positions", [3000, 100_000])
def test_the_limit_is_the_models_up_to_8192(positions: int) -> None:
    fields = TINY | {"model_type": "qwen3", "max_position_embeddings": positions}
    assert parse_config(fields).max_position_embeddings == min(positions, 8192)


def test_heads_that_do_not_share_keys_evenly_are_refused() -> None:
    with pytest.raises(ConfigError, match="not a multiple of num_key_value_heads 3"):
        parse_config(TINY | {"model_type": "qwen3", "num_key_value_heads": 3})
