from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
    Dinov2WithRegistersModel,
)

from model.checkpoint import load_checkpoint
from tests.model.families.parity import saved
from tests.model.families.picture_parity import SIZES, assert_equal_to

TINY = {name: size for name, size in SIZES.items() if name != "intermediate_size"}
SHAPES: list[tuple[dict[str, Any], tuple[int, int]]] = [
    ({"image_size": 42}, (42, 42)),
    ({"image_size": 70, "mlp_ratio": 2, "qkv_bias": False, "use_mask_token": False}, (28, 56)),
    ({"image_size": 64, "patch_size": 16, "use_swiglu_ffn": True}, (32, 128)),
]


@pytest.mark.parametrize(("changes", "size"), SHAPES, ids=str)
def test_it_equals_transformers(
    changes: dict[str, Any], size: tuple[int, int], tmp_path: Path
) -> None:
    assert_equal_to(Dinov2Model(Dinov2Config(**TINY | changes)), tmp_path, size)


@pytest.mark.parametrize(("changes", "size"), SHAPES, ids=str)
def test_registers_equal_transformers(
    changes: dict[str, Any], size: tuple[int, int], tmp_path: Path
) -> None:
    registers = {"patch_size": 14, "num_register_tokens": len(changes)}
    config = Dinov2WithRegistersConfig(**TINY | registers | changes)
    encoder = assert_equal_to(Dinov2WithRegistersModel(config), tmp_path, size)
    patches = encoder.config.embeddings.patches
    assert patches
    assert patches.special_tokens[1:] == tuple(
        f"[REG {number}]" for number in range(1, len(changes) + 1)
    )


def test_a_classifiers_keys_have_the_models_prefix(tmp_path: Path) -> None:
    config = Dinov2WithRegistersConfig(**TINY | {"image_size": 32})
    load_checkpoint(saved(Dinov2WithRegistersForImageClassification(config), tmp_path))
