"""Text encoders of every family against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AlbertConfig,
    AlbertModel,
    CamembertConfig,
    CamembertModel,
    DebertaV2Config,
    DebertaV2Model,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraForMultipleChoice,
    ElectraModel,
    EuroBertConfig,
    EuroBertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    GteConfig,
    GteModel,
    LlamaConfig,
    LlamaModel,
    MistralConfig,
    MistralModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    NomicBertConfig,
    NomicBertModel,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3Model,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from model.checkpoint import load_checkpoint
from tests.model.families.jina_bert import JinaBert
from tests.model.families.parity import SIZES, assert_equal_to, saved

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
CAUSAL = {LlamaModel, Qwen2Model, Qwen3Model}
CASES: list[tuple[Any, Any, dict[str, Any], list[dict[str, Any]]]] = [
    (
        DebertaV2Model,
        DebertaV2Config,
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
    (
        DistilBertModel,
        DistilBertConfig,
        DISTILBERT,
        [{}, {"n_heads": 2, "n_layers": 1}, {"activation": "relu", "sinusoidal_pos_embds": True}],
    ),
    (
        ElectraModel,
        ElectraConfig,
        SIZES,
        [
            {"embedding_size": 16},
            {"embedding_size": 24},
            {"embedding_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2},
        ],
    ),
    (
        MPNetModel,
        MPNetConfig,
        SIZES,
        [{}, {"num_attention_heads": 2, "num_hidden_layers": 2}, {"pad_token_id": 3}],
    ),
    (
        NomicBertModel,
        NomicBertConfig,
        SIZES,
        [
            {},
            {"num_attention_heads": 2, "hidden_act": "gelu"},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}, "type_vocab_size": 1},
        ],
    ),
    (
        GteModel,
        GteConfig,
        SIZES,
        [
            {},
            {"type_vocab_size": 0},
            {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0}},
        ],
    ),
    (
        ModernBertModel,
        ModernBertConfig,
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
    (
        LlamaModel,
        LlamaConfig,
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
    (
        EuroBertModel,
        EuroBertConfig,
        LLAMA | IDS,
        [{}, {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}],
    ),
    (
        Gemma3TextModel,
        Gemma3TextConfig,
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
    (
        Qwen2Model,
        Qwen2Config,
        LLAMA,
        [
            {},
            {"is_causal": False, "num_key_value_heads": None},
            {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        ],
    ),
    (
        Qwen3Model,
        Qwen3Config,
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
]
"""Models, their configs, sizes, and changes of these."""


@pytest.mark.parametrize(
    ("model", "config", "fields"),
    [
        pytest.param(model, config, sizes | change, id=f"{model.__name__}-{change}")
        for model, config, sizes, changes in CASES
        for change in changes
    ],
)
def test_an_encoder_equals_transformers(
    model: Any, config: Any, fields: dict[str, Any], tmp_path: Path
) -> None:
    encoder = assert_equal_to(model(config(**fields)), tmp_path)
    if model is not Gemma3TextModel:
        causal = model in CAUSAL and fields.get("is_causal", True)
        assert encoder.config.attention.causal is causal


@pytest.mark.parametrize(
    ("changes", "distinct"),
    [
        ({"embedding_size": 16}, 1),
        ({"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2}, 2),
        ({"embedding_size": 24, "num_hidden_layers": 5, "num_hidden_groups": 3}, 3),
    ],
    ids=str,
)
def test_albert_equals_transformers(changes: dict[str, Any], distinct: int, tmp_path: Path) -> None:
    encoder = assert_equal_to(AlbertModel(AlbertConfig(**SIZES | changes)), tmp_path)
    assert len(encoder.layers) == distinct


def test_layers_are_grouped_as_transformers_rounds(tmp_path: Path) -> None:
    """9 / (18 / 14) is slightly less than 7 in floating point."""
    many = {"num_hidden_layers": 18, "num_hidden_groups": 14, "embedding_size": 4}
    assert_equal_to(AlbertModel(AlbertConfig(**SIZES | many)), tmp_path, (3, 9, 17))


@pytest.mark.parametrize("feed_forward", ["geglu", "reglu"])
@pytest.mark.parametrize("heads", [2, 3])
def test_jina_bert_equals_its_description(tmp_path: Path, feed_forward: str, heads: int) -> None:
    reference: Any = JinaBert(SIZES | {"num_attention_heads": heads}, feed_forward)
    encoder = assert_equal_to(reference, tmp_path)
    assert encoder.config.attention.alibi
    assert encoder.config.embeddings.positions == "none"


def test_what_summarises_choices_lies_outside(tmp_path: Path) -> None:
    choices = ElectraForMultipleChoice(ElectraConfig(**SIZES))
    load_checkpoint(saved(choices, tmp_path))


def test_distances_beyond_the_last_bucket_share_it(tmp_path: Path) -> None:
    config = MPNetConfig(**SIZES | {"max_position_embeddings": 202, "num_hidden_layers": 1})
    assert_equal_to(MPNetModel(config), tmp_path, (3, 7, 200))


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (RobertaConfig, RobertaModel),
        (XLMRobertaConfig, XLMRobertaModel),
        (CamembertConfig, CamembertModel),
    ],
)
@pytest.mark.parametrize(
    "changes",
    [
        {"type_vocab_size": 1},
        {"type_vocab_size": 2, "pad_token_id": 7, "hidden_act": "relu"},
        {"num_attention_heads": 2, "hidden_size": 16, "layer_norm_eps": 1e-5},
    ],
    ids=str,
)
def test_roberta_equals_transformers(
    config: Any, model: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    encoder = assert_equal_to(model(config(**SIZES | changes)), tmp_path)
    padding = encoder.config.pad_token_id
    assert encoder.config.max_position_embeddings == 48 - padding - 1


def test_the_longest_text_ends_at_the_last_position(tmp_path: Path) -> None:
    assert_equal_to(RobertaModel(RobertaConfig(**SIZES)), tmp_path, (46, 2, 46))


def test_texts_far_longer_than_a_window_equal_transformers(tmp_path: Path) -> None:
    config = ModernBertConfig(
        **MODERNBERT | {"max_position_embeddings": 8192, "num_hidden_layers": 2}
    )
    assert_equal_to(ModernBertModel(config), tmp_path, (300, 3, 41))


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 7},
        {"sliding_window": None, "head_dim": 10},
        {"sliding_window": 7, "is_causal": False},
    ],
    ids=str,
)
def test_mistral_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    encoder = assert_equal_to(MistralModel(MistralConfig(**LLAMA | changes)), tmp_path)
    assert bool(encoder.config.attention.windows) == (changes["sliding_window"] is not None)


def test_a_window_of_more_than_a_thousand_tokens_equals_transformers(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 1, "max_position_embeddings": 2048, "sliding_window": 1030}
    encoder = assert_equal_to(
        MistralModel(MistralConfig(**LLAMA | sizes)), tmp_path, lengths=(1, 5, 1100)
    )
    assert encoder.config.attention.windows == (1029,)
