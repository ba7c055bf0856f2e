"""Encoders of texts and pictures of every family, and towers, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from model.checkpoint import load_checkpoint
from model.config.encoder import patches_of
from model.packing import PackedBatch
from tests.model.families.jina_bert import JinaBert
from tests.model.families.parity import SIZES, assert_equal_to, model_of, saved
from tests.model.families.picture_parity import SIZES as PICTURES
from tests.model.families.picture_parity import assert_equal_to as assert_pictures_equal
from tests.model.families.picture_parity import packed_pictures

VERSION_3 = {
    "relative_attention": True,
    "position_buckets": 16,
    "max_relative_positions": 40,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}
DISTILBERT = {
    "vocab_size": SIZES["vocab_size"],
    "dim": 24,
    "n_layers": 3,
    "n_heads": 3,
    "hidden_dim": 40,
    "max_position_embeddings": 48,
}
MODERNBERT = SIZES | {
    "num_hidden_layers": 5,
    "local_attention": 12,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "cls_token_id"), 0),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
}
LLAMA = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2}
YARN = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0}
IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 1, "mask_token_id": 2}
GEMMA3 = SIZES | {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "sliding_window": 10,
    "sliding_window_pattern": 2,
    "use_bidirectional_attention": True,
    "pad_token_id": 0,
}
QWEN3 = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "DebertaV2": (
        SIZES,
        [
            VERSION_3,
            {
                "relative_attention": True,
                "pos_att_type": ["c2p"],
                "max_relative_positions": 20,
                "embedding_size": 16,
                "type_vocab_size": 2,
            },
            {
                "relative_attention": True,
                "pos_att_type": ["c2p", "p2c"],
                "share_att_key": False,
                "position_buckets": 8,
                "max_relative_positions": 40,
                "num_attention_heads": 2,
            },
            {"relative_attention": True, "pos_att_type": ["p2c"], "share_att_key": True},
            VERSION_3 | {"position_buckets": 20, "max_relative_positions": 20},
            VERSION_3 | {"position_buckets": 24, "max_relative_positions": 20},
            VERSION_3 | {"position_buckets": 0, "max_relative_positions": 0},
            VERSION_3 | {"pos_att_type": None},
            {"pos_att_type": "c2p|c2p"},
            {},
        ],
    ),
    "DistilBert": (
        DISTILBERT,
        [{}, {"n_heads": 2, "n_layers": 1}, {"activation": "relu", "sinusoidal_pos_embds": True}],
    ),
    "Electra": (
        SIZES,
        [
            {"embedding_size": 16},
            {"embedding_size": 24},
            {"embedding_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2},
        ],
    ),
    "MPNet": (SIZES, [{}, {"num_attention_heads": 2, "num_hidden_layers": 2}, {"pad_token_id": 3}]),
    "NomicBert": (
        SIZES,
        [
            {},
            {"num_attention_heads": 2, "hidden_act": "gelu"},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}, "type_vocab_size": 1},
        ],
    ),
    "Gte": (
        SIZES,
        [
            {},
            {"type_vocab_size": 0},
            {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0}},
        ],
    ),
    "ModernBert": (
        MODERNBERT,
        [
            {},
            {"norm_bias": True, "attention_bias": True, "mlp_bias": True},
            {
                "num_attention_heads": 2,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "num_hidden_layers": 4,
                "local_attention": 7,
            },
            {"layer_types": ["full_attention"] * 5, "hidden_activation": "silu"},
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        ],
    ),
    "Llama": (
        LLAMA,
        [
            {},
            {"attention_bias": True, "mlp_bias": True, "head_dim": 10, "num_key_value_heads": None},
            {"is_causal": False},
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0}},
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 2.0}},
            {"rope_parameters": YARN | {"original_max_position_embeddings": 12}},
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 50.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 16,
                }
            },
        ],
    ),
    "EuroBert": (
        LLAMA | IDS,
        [{}, {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}],
    ),
    "Gemma3Text": (
        GEMMA3,
        [
            {},
            {"query_pre_attn_scalar": 20, "num_key_value_heads": 1, "hidden_activation": "silu"},
            {"use_bidirectional_attention": False},
            {"use_bidirectional_attention": False, "is_causal": False, "sliding_window": 5},
            {"is_causal": False},
            {"sliding_window": 1},  # which is written as 0
            {"layer_types": ["full_attention"] * 3, "attention_bias": True},
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
                }
            },
        ],
    ),
    "Qwen2": (
        LLAMA,
        [
            {},
            {"is_causal": False, "num_key_value_heads": None},
            {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        ],
    ),
    "Qwen3": (
        QWEN3,
        [
            {},
            {"num_key_value_heads": 1, "head_dim": 10, "attention_bias": True},
            {
                "num_key_value_heads": 4,
                "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
            },
            {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
            {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
            | {"is_causal": False, "pad_token_id": None},
        ],
    ),
    "Bert": (
        SIZES,
        [
            {},
            {"hidden_size": 15, "num_attention_heads": 5, "num_hidden_layers": 1},
            {"hidden_size": 6, "num_attention_heads": 6, "type_vocab_size": 3},
            {"layer_norm_eps": 0.3, "type_vocab_size": 1, "intermediate_size": 1},
        ],
    ),
    "Albert": (
        SIZES,
        [
            {"embedding_size": 16},
            {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2},
            {"embedding_size": 24, "num_hidden_layers": 5, "num_hidden_groups": 3},
        ],
    ),
    **dict.fromkeys(
        ("Roberta", "XLMRoberta", "Camembert"),
        (
            SIZES,
            [
                {"type_vocab_size": 1},
                {"type_vocab_size": 2, "pad_token_id": 7, "hidden_act": "relu"},
                {"num_attention_heads": 2, "hidden_size": 16, "layer_norm_eps": 1e-5},
            ],
        ),
    ),
    "Mistral": (
        LLAMA,
        [
            {"sliding_window": 7},
            {"sliding_window": None, "head_dim": 10},
            {"sliding_window": 7, "is_causal": False},
        ],
    ),
    **dict.fromkeys(
        ("CLIPText", "SiglipText"),
        (
            SIZES | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 1},
            [
                {},
                {"hidden_act": "gelu", "num_attention_heads": 2},
                {"layer_norm_eps": 1e-3, "num_hidden_layers": 1, "intermediate_size": 24},
                {"projection_size": 7},
            ],
        ),
    ),
}
"""Families, their sizes, and changes of these."""


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        pytest.param(family, sizes | change, id=f"{family}-{change}")
        for family, (sizes, changes) in CASES.items()
        for change in changes
    ],
)
def test_an_encoder_equals_transformers(
    family: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert_equal_to(model_of(family, **fields), tmp_path)


@pytest.mark.parametrize(
    ("family", "fields", "lengths"),
    [
        # 9 / (18 / 14) is slightly less than 7 in floating point
        (
            "Albert",
            {"num_hidden_layers": 18, "num_hidden_groups": 14, "embedding_size": 4},
            (3, 9, 17),
        ),
        # distances beyond the last bucket share it
        ("MPNet", {"max_position_embeddings": 202, "num_hidden_layers": 1}, (3, 7, 200)),
        # the longest text ends at the last position
        ("Roberta", {}, (46, 2, 46)),
        # a text is far longer than a window, of few tokens or of more than a thousand
        (
            "ModernBert",
            MODERNBERT | {"max_position_embeddings": 8192, "num_hidden_layers": 2},
            (300, 3, 41),
        ),
        (
            "Mistral",
            LLAMA
            | {"num_hidden_layers": 1, "max_position_embeddings": 2048, "sliding_window": 1030},
            (1, 5, 1100),
        ),
    ],
    ids=str,
)
def test_sizes_at_a_limit_equal_transformers(
    family: str, fields: dict[str, Any], lengths: tuple[int, ...], tmp_path: Path
) -> None:
    assert_equal_to(model_of(family, **SIZES | fields), tmp_path, lengths)


@pytest.mark.parametrize("feed_forward", ["geglu", "reglu"])
@pytest.mark.parametrize("heads", [2, 3])
def test_jina_bert_equals_its_description(tmp_path: Path, feed_forward: str, heads: int) -> None:
    reference: Any = JinaBert(SIZES | {"num_attention_heads": heads}, feed_forward)
    encoder = assert_equal_to(reference, tmp_path)
    assert encoder.config.attention.alibi
    assert encoder.config.embeddings.positions == "none"


DINO = {name: size for name, size in PICTURES.items() if name != "intermediate_size"}
REGISTERS = DINO | {"patch_size": 14, "num_register_tokens": 2}
DINO_CASES: list[tuple[dict[str, Any], tuple[int, int]]] = [
    ({"image_size": 42}, (42, 42)),
    ({"image_size": 70, "mlp_ratio": 2, "qkv_bias": False, "use_mask_token": False}, (28, 56)),
    ({"image_size": 64, "patch_size": 16, "use_swiglu_ffn": True}, (32, 128)),
]
TOWER_CASES: list[tuple[dict[str, Any], tuple[int, int]]] = [
    ({"image_size": 42, "patch_size": 14}, (42, 42)),
    ({"image_size": 32, "patch_size": 16, "hidden_act": "gelu"}, (32, 64)),
    ({"image_size": 32, "patch_size": 8, "num_attention_heads": 2}, (24, 16)),
]
PICTURE_CASES: dict[str, tuple[dict[str, Any], list[tuple[dict[str, Any], tuple[int, int]]]]] = {
    "CLIPVision": (PICTURES, TOWER_CASES),
    "SiglipVision": (PICTURES, TOWER_CASES),
    "ViT": (
        PICTURES,
        [
            ({"image_size": 48}, (48, 48)),
            ({"image_size": 56, "patch_size": 14, "qkv_bias": False}, (42, 70)),
            ({"image_size": [32, 64], "hidden_act": "gelu_new"}, (32, 64)),
            ({"image_size": 64}, (32, 130)),
        ],
    ),
    "DeiT": (
        PICTURES,
        [
            ({"image_size": 48}, (48, 48)),
            ({"image_size": 42, "patch_size": 14, "qkv_bias": False}, (28, 56)),
            ({"image_size": 32}, (64, 48)),
        ],
    ),
    "Dinov2": (DINO, DINO_CASES),
    "Dinov2WithRegisters": (REGISTERS, DINO_CASES),
}
"""Families, their sizes, and changes of these with height and width of a picture."""


@pytest.mark.parametrize(
    ("family", "fields", "size"),
    [
        pytest.param(family, sizes | change, size, id=f"{family}-{change}-{size}")
        for family, (sizes, cases) in PICTURE_CASES.items()
        for change, size in cases
    ],
)
def test_an_encoder_of_pictures_equals_transformers(
    family: str, fields: dict[str, Any], size: tuple[int, int], tmp_path: Path
) -> None:
    trained = fields["image_size"]
    other = size != (tuple(trained) if isinstance(trained, list) else (trained, trained))
    call = {} if family.startswith("Dino") else {"interpolate_pos_encoding": other}
    assert_pictures_equal(model_of(family, **fields), tmp_path, size, **call)


def test_masked_patches_equal_transformers(tmp_path: Path) -> None:
    """Patches that no token attends to keep their positions, as with `attention_mask` 0."""
    model = model_of("ViT", **PICTURES, image_size=48)
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


SMALL = PICTURES | {"image_size": 32}


@pytest.mark.parametrize(
    ("family", "task", "fields"),
    [
        ("Electra", "ForMultipleChoice", SIZES),
        ("Gte", "ForSequenceClassification", SIZES),
        ("Llama", "ForCausalLM", LLAMA),
        ("CLIPText", "ModelWithProjection", CASES["CLIPText"][0]),
        ("ViT", "ForImageClassification", SMALL),
        ("ViT", "ForMaskedImageModeling", SMALL),
        ("DeiT", "ForImageClassificationWithTeacher", SMALL),
        ("Dinov2WithRegisters", "ForImageClassification", REGISTERS | {"image_size": 28}),
    ],
)
def test_tensors_of_tasks_lie_outside_the_encoder(
    family: str, task: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    load_checkpoint(saved(model_of(family, task=task, **fields), tmp_path))
