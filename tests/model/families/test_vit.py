from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DeiTConfig,
    DeiTForImageClassificationWithTeacher,
    DeiTModel,
    ViTConfig,
    ViTForImageClassification,
    ViTForMaskedImageModeling,
    ViTModel,
)

from model.checkpoint import load_checkpoint
from model.config.encoder import patches_of
from model.packing import PackedBatch
from tests.model.families.parity import saved
from tests.model.families.picture_parity import SIZES, assert_equal_to, packed_pictures


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"image_size": 48}, (48, 48)),
        ({"image_size": 56, "patch_size": 14, "qkv_bias": False}, (42, 70)),
        ({"image_size": [32, 64], "hidden_act": "gelu_new"}, (32, 64)),
        ({"image_size": 64}, (32, 130)),
    ],
    ids=str,
)
def test_vit_equals_transformers(
    changes: dict[str, Any], size: tuple[int, int], tmp_path: Path
) -> None:
    model = ViTModel(ViTConfig(**SIZES | changes))
    trained = changes["image_size"]
    interpolated = size != (tuple(trained) if isinstance(trained, list) else (trained, trained))
    assert_equal_to(model, tmp_path, size, interpolate_pos_encoding=interpolated)


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"image_size": 48}, (48, 48)),
        ({"image_size": 42, "patch_size": 14, "qkv_bias": False}, (28, 56)),
        ({"image_size": 32}, (64, 48)),
    ],
    ids=str,
)
def test_deit_equals_transformers(
    changes: dict[str, Any], size: tuple[int, int], tmp_path: Path
) -> None:
    model = DeiTModel(DeiTConfig(**SIZES | changes))
    interpolated = size != (changes["image_size"],) * 2
    encoder = assert_equal_to(model, tmp_path, size, interpolate_pos_encoding=interpolated)
    patches = encoder.config.embeddings.patches
    assert patches
    assert patches.special_tokens == ("[CLS]", "[DIST]")


def test_masked_patches_equal_transformers(tmp_path: Path) -> None:
    """Patches that no token attends to keep their positions, as with `attention_mask` 0."""
    model = ViTModel(ViTConfig(**SIZES | {"image_size": 48}))
    encoder = load_checkpoint(saved(model, tmp_path))
    pictures = 0.3 * torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[0, [1, 9]] = mask[1, 5] = 0
    batch = packed_pictures(patches_of(encoder.config), pictures, [(1, 9), (5,)])
    with torch.no_grad():
        ours = encoder(PackedBatch.of(batch)).hidden_states[-1].reshape(2, 10, -1)
        theirs = model(pictures, attention_mask=mask).last_hidden_state
        unmasked = model(pictures).last_hidden_state
    seen = mask.bool()
    atol = 1e-5 * theirs.abs().max().item()
    torch.testing.assert_close(ours[seen], theirs[seen], atol=atol, rtol=0)
    assert (theirs - unmasked)[seen].abs().max() > 100 * atol


def test_task_heads_and_mask_tokens_are_outside_the_encoder(tmp_path: Path) -> None:
    sizes = SIZES | {"image_size": 32}
    for number, model in enumerate(
        (
            ViTForImageClassification(ViTConfig(**sizes)),
            ViTForMaskedImageModeling(ViTConfig(**sizes)),
            DeiTForImageClassificationWithTeacher(DeiTConfig(**sizes)),
        )
    ):
        load_checkpoint(saved(model, tmp_path / str(number)))
