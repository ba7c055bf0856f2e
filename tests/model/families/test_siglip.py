from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    SiglipTextConfig,
    SiglipTextModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from tests.model.families.parity import SIZES, assert_equal_to
from tests.model.families.picture_parity import SIZES as PICTURES
from tests.model.families.picture_parity import assert_equal_to as assert_pictures_equal

TINY = SIZES | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden_act": "gelu", "num_attention_heads": 2},
        {"layer_norm_eps": 1e-3, "num_hidden_layers": 1, "projection_size": 7},
    ],
    ids=str,
)
def test_the_text_tower_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    encoder = assert_equal_to(SiglipTextModel(SiglipTextConfig(**TINY | changes)), tmp_path)
    assert not encoder.config.attention.causal


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"image_size": 42, "patch_size": 14}, (42, 42)),
        ({"image_size": 32, "patch_size": 16, "hidden_act": "gelu"}, (32, 64)),
        ({"image_size": 32, "patch_size": 8, "num_attention_heads": 2}, (24, 16)),
    ],
    ids=str,
)
def test_the_vision_tower_equals_transformers(
    changes: dict[str, Any], size: tuple[int, int], tmp_path: Path
) -> None:
    model = SiglipVisionModel(SiglipVisionConfig(**PICTURES | changes))
    encoder = assert_pictures_equal(model, tmp_path, size, interpolate_pos_encoding=True)
    assert encoder.config.has_final_norm
