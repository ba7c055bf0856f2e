from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import DebertaV2Config, DebertaV2Model

from model.errors import ConfigError
from model.families.registry import parse_config
from tests.model.families.parity import SIZES, assert_equal_to

VERSION_3 = {
    "relative_attention": True,
    "position_buckets": 16,
    "max_relative_positions": 40,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}


@pytest.mark.parametrize(
    "changes",
    [
        VERSION_3,
        {
            "relative_attention": True,
            "pos_att_type": ["c2p"],
            "max_relative_positions": 20,
            "embedding_size": 16,
            "type_vocab_size": 2,
        },
        {
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "share_att_key": False,
            "position_buckets": 8,
            "max_relative_positions": 40,
            "num_attention_heads": 2,
        },
        {"relative_attention": True, "pos_att_type": ["p2c"], "share_att_key": True},
        {},
    ],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    assert_equal_to(DebertaV2Model(DebertaV2Config(**SIZES | changes)), tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"conv_kernel_size": 3}, {"attention_score": "additive"}, {"norm_rel_ebd": "other"}],
    ids=str,
)
def test_another_build_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        parse_config(SIZES | VERSION_3 | {"model_type": "deberta-v2"} | change)
