"""Encoders of pictures, and towers, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModel,
    DeiTConfig,
    DeiTForImageClassificationWithTeacher,
    DeiTModel,
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
    Dinov2WithRegistersModel,
    SiglipTextConfig,
    SiglipTextModel,
    SiglipVisionConfig,
    SiglipVisionModel,
    ViTConfig,
    ViTForImageClassification,
    ViTForMaskedImageModeling,
    ViTModel,
)

from model.checkpoint import load_checkpoint
from model.config.encoder import patches_of
from model.packing import PackedBatch
from tests.model.families.parity import SIZES, assert_equal_to, saved
from tests.model.families.picture_parity import SIZES as PICTURES
from tests.model.families.picture_parity import assert_equal_to as assert_pictures_equal
from tests.model.families.picture_parity import packed_pictures

TINY = SIZES | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden_act": "gelu", "num_attention_heads": 2},
        {"layer_norm_eps": 1e-3, "num_hidden_layers": 1, "intermediate_size": 24},
    ],
    ids=str,
)
def test_clips_text_tower_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    encoder = assert_equal_to(CLIPTextModel(CLIPTextConfig(**TINY | changes)), tmp_path)
    assert encoder.config.attention.causal


def test_keys_of_a_projection_are_outside_the_tower(tmp_path: Path) -> None:
    load_checkpoint(saved(CLIPTextModelWithProjection(CLIPTextConfig(**TINY)), tmp_path))


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"image_size": 42, "patch_size": 14}, (42, 42)),
        ({"image_size": 32, "patch_size": 16, "hidden_act": "gelu"}, (32, 64)),
        ({"image_size": 32, "patch_size": 8, "num_attention_heads": 2}, (24, 16)),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("kind", "config", "has_final_norm"),
    [
        (CLIPVisionModel, CLIPVisionConfig, False),
        (SiglipVisionModel, SiglipVisionConfig, True),
    ],
)
def test_the_vision_towers_equal_transformers(
    kind: Any,
    config: Any,
    has_final_norm: bool,
    changes: dict[str, Any],
    size: tuple[int, int],
    tmp_path: Path,
) -> None:
    model = kind(config(**PICTURES | changes))
    encoder = assert_pictures_equal(model, tmp_path, size, interpolate_pos_encoding=True)
    assert encoder.config.has_final_norm == has_final_norm


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden_act": "gelu", "num_attention_heads": 2},
        {"layer_norm_eps": 1e-3, "num_hidden_layers": 1, "projection_size": 7},
    ],
    ids=str,
)
def test_siglips_text_tower_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    encoder = assert_equal_to(SiglipTextModel(SiglipTextConfig(**TINY | changes)), tmp_path)
    assert not encoder.config.attention.causal


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
    model = ViTModel(ViTConfig(**PICTURES | changes))
    trained = changes["image_size"]
    interpolated = size != (tuple(trained) if isinstance(trained, list) else (trained, trained))
    assert_pictures_equal(model, tmp_path, size, interpolate_pos_encoding=interpolated)


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
    model = DeiTModel(DeiTConfig(**PICTURES | changes))
    interpolated = size != (changes["image_size"],) * 2
    encoder = assert_pictures_equal(model, tmp_path, size, interpolate_pos_encoding=interpolated)
    patches = encoder.config.embeddings.patches
    assert patches
    assert patches.special_tokens == ("[CLS]", "[DIST]")


def test_masked_patches_equal_transformers(tmp_path: Path) -> None:
    """Patches that no token attends to keep their positions, as with `attention_mask` 0."""
    model = ViTModel(ViTConfig(**PICTURES | {"image_size": 48}))
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
    sizes = PICTURES | {"image_size": 32}
    for number, model in enumerate(
        (
            ViTForImageClassification(ViTConfig(**sizes)),
            ViTForMaskedImageModeling(ViTConfig(**sizes)),
            DeiTForImageClassificationWithTeacher(DeiTConfig(**sizes)),
        )
    ):
        load_checkpoint(saved(model, tmp_path / str(number)))


DINO = {name: size for name, size in PICTURES.items() if name != "intermediate_size"}
SHAPES: list[tuple[dict[str, Any], tuple[int, int]]] = [
    ({"image_size": 42}, (42, 42)),
    ({"image_size": 70, "mlp_ratio": 2, "qkv_bias": False, "use_mask_token": False}, (28, 56)),
    ({"image_size": 64, "patch_size": 16, "use_swiglu_ffn": True}, (32, 128)),
]


@pytest.mark.parametrize(("changes", "size"), SHAPES, ids=str)
def test_dinov2_equals_transformers(
    changes: dict[str, Any], size: tuple[int, int], tmp_path: Path
) -> None:
    assert_pictures_equal(Dinov2Model(Dinov2Config(**DINO | changes)), tmp_path, size)


@pytest.mark.parametrize(("changes", "size"), SHAPES, ids=str)
def test_registers_equal_transformers(
    changes: dict[str, Any], size: tuple[int, int], tmp_path: Path
) -> None:
    registers = {"patch_size": 14, "num_register_tokens": len(changes)}
    config = Dinov2WithRegistersConfig(**DINO | registers | changes)
    encoder = assert_pictures_equal(Dinov2WithRegistersModel(config), tmp_path, size)
    patches = encoder.config.embeddings.patches
    assert patches
    assert patches.special_tokens[1:] == tuple(
        f"[REG {number}]" for number in range(1, len(changes) + 1)
    )


def test_a_classifiers_keys_have_the_models_prefix(tmp_path: Path) -> None:
    config = Dinov2WithRegistersConfig(**DINO | {"image_size": 32})
    load_checkpoint(saved(Dinov2WithRegistersForImageClassification(config), tmp_path))
