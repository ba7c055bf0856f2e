from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import EuroBertConfig, EuroBertModel

from tests.model.families.parity import assert_equal_to
from tests.model.families.test_llama import TINY

IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 1, "mask_token_id": 2}


@pytest.mark.parametrize(
    "changes", [{}, {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}], ids=str
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    encoder = assert_equal_to(EuroBertModel(EuroBertConfig(**TINY | IDS | changes)), tmp_path)
    assert not encoder.config.attention.causal
