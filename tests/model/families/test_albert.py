from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AlbertConfig, AlbertModel

from model.errors import ConfigError
from model.families.registry import parse_config
from tests.model.families.parity import SIZES, assert_equal_to


@pytest.mark.parametrize(
    ("changes", "distinct"),
    [
        ({"embedding_size": 16}, 1),
        ({"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2}, 2),
        ({"embedding_size": 24, "num_hidden_layers": 5, "num_hidden_groups": 3}, 3),
    ],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], distinct: int, tmp_path: Path) -> None:
    encoder = assert_equal_to(AlbertModel(AlbertConfig(**SIZES | changes)), tmp_path)
    assert len(encoder.layers) == distinct


def test_layers_are_grouped_as_transformers_rounds(tmp_path: Path) -> None:
    """9 / (18 / 14) is slightly less than 7 in floating point."""
    many = {"num_hidden_layers": 18, "num_hidden_groups": 14, "embedding_size": 4}
    assert_equal_to(AlbertModel(AlbertConfig(**SIZES | many)), tmp_path, (3, 9, 17))


def test_groups_of_several_layers_are_refused() -> None:
    fields = SIZES | {"model_type": "albert", "inner_group_num": 2}
    with pytest.raises(ConfigError, match="inner_group_num"):
        parse_config(fields)
