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
        VERSION_3 | {"position_buckets": 20, "max_relative_positions": 20},
        VERSION_3 | {"position_buckets": 24, "max_relative_positions": 20},
        VERSION_3 | {"position_buckets": 0, "max_relative_positions": 0},
        VERSION_3 | {"pos_att_type": None},
        {"pos_att_type": "c2p|c2p"},
        {},
    ],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    assert_equal_to(DebertaV2Model(DebertaV2Config(**SIZES | changes)), tmp_path)


@pytest.mark.parametrize(("buckets", "farthest"), [(1, 20), (16, 9), (2, 2), (96, -1)])
def test_buckets_that_leave_out_distances_are_refused(buckets: int, farthest: int) -> None:
    fields = VERSION_3 | {"position_buckets": buckets, "max_relative_positions": farthest}
    with pytest.raises(ConfigError, match=f"position_buckets {buckets} with") as caught:
        parse_config(SIZES | fields | {"model_type": "deberta-v2", "max_position_embeddings": 49})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [{"conv_kernel_size": 3}, {"attention_score": "additive"}, {"norm_rel_ebd": "other"}],
    ids=str,
)
def test_another_build_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        parse_config(SIZES | VERSION_3 | {"model_type": "deberta-v2"} | change)
