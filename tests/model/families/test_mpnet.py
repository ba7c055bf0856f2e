from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import MPNetConfig, MPNetModel

from model.errors import ConfigError
from model.families.registry import parse_config
from tests.model.families.parity import SIZES, assert_equal_to


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_attention_heads": 2, "num_hidden_layers": 2}, {"pad_token_id": 3}],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    assert_equal_to(MPNetModel(MPNetConfig(**SIZES | changes)), tmp_path)


def test_distances_beyond_the_last_bucket_share_it(tmp_path: Path) -> None:
    config = MPNetConfig(**SIZES | {"max_position_embeddings": 202, "num_hidden_layers": 1})
    assert_equal_to(MPNetModel(config), tmp_path, (3, 7, 200))


def test_other_buckets_are_refused() -> None:
    fields = SIZES | {"model_type": "mpnet", "relative_attention_num_buckets": 64}
    with pytest.raises(ConfigError, match="relative_attention_num_buckets"):
        parse_config(fields)
