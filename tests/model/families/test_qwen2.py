from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config, Qwen2Model

from tests.model.families.parity import assert_equal_to
from tests.model.families.test_llama import TINY


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"is_causal": False, "num_key_value_heads": None},
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    encoder = assert_equal_to(Qwen2Model(Qwen2Config(**TINY | changes)), tmp_path)
    assert encoder.config.attention.causal is changes.get("is_causal", True)
