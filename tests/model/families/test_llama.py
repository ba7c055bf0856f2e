from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

from model.families.llama import LLAMA
from tests.model.families.parity import SIZES, assert_equal_to

TINY = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2}
YARN = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_bias": True, "mlp_bias": True, "head_dim": 10, "num_key_value_heads": None},
        {"is_causal": False},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0}},
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 2.0}},
        {"rope_parameters": YARN | {"original_max_position_embeddings": 12}},
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 50.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    ],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    encoder = assert_equal_to(LlamaModel(LlamaConfig(**TINY | changes)), tmp_path)
    assert encoder.config.attention.causal is changes.get("is_causal", True)


def test_the_output_map_of_a_language_model_is_left_out() -> None:
    keys = LlamaForCausalLM(LlamaConfig(**TINY)).state_dict().keys()
    left_out = keys - LLAMA.encoder_keys(keys).keys()
    assert left_out == {"lm_head.weight"}
