from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import ElectraConfig, ElectraModel

from tests.model.families.parity import SIZES, assert_equal_to


@pytest.mark.parametrize(
    "changes",
    [
        {"embedding_size": 16},
        {"embedding_size": 24},
        {"embedding_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2},
    ],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    assert_equal_to(ElectraModel(ElectraConfig(**SIZES | changes)), tmp_path)
