from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import MBartConfig, MBartForConditionalGeneration

from tests.model.families.decoder_parity import SIZES, assert_pair_equal_to


@pytest.mark.parametrize(
    "changes",
    [{}, {"scale_embedding": True, "activation_function": "relu", "decoder_start_token_id": 2}],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    """The decoder reads a target's last token first, even if generation starts with another."""
    model = MBartForConditionalGeneration(MBartConfig(**SIZES | changes))
    decoder = assert_pair_equal_to(model, tmp_path)
    assert decoder.config.start_token_id is None
