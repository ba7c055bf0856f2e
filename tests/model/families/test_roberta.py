from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    CamembertConfig,
    CamembertModel,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from model.errors import ConfigError
from model.families.registry import parse_config
from tests.model.families.parity import SIZES, assert_equal_to


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (RobertaConfig, RobertaModel),
        (XLMRobertaConfig, XLMRobertaModel),
        (CamembertConfig, CamembertModel),
    ],
)
@pytest.mark.parametrize(
    "changes",
    [
        {"type_vocab_size": 1},
        {"type_vocab_size": 2, "pad_token_id": 7, "hidden_act": "relu"},
        {"num_attention_heads": 2, "hidden_size": 16, "layer_norm_eps": 1e-5},
    ],
    ids=str,
)
def test_it_equals_transformers(
    config: Any, model: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    encoder = assert_equal_to(model(config(**SIZES | changes)), tmp_path)
    padding = encoder.config.pad_token_id
    assert encoder.config.max_position_embeddings == 48 - padding - 1


def test_the_longest_text_ends_at_the_last_position(tmp_path: Path) -> None:
    assert_equal_to(RobertaModel(RobertaConfig(**SIZES)), tmp_path, (46, 2, 46))


def test_a_table_without_room_for_a_token_is_refused() -> None:
    fields = SIZES | {"model_type": "roberta", "max_position_embeddings": 2}
    with pytest.raises(ConfigError, match="max_position_embeddings: Input should be greater than"):
        parse_config(fields)
