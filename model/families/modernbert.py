"""ModernBERT (Warner et al. 2024, https://arxiv.org/abs/2412.13663)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from model.config.encoder import ActivationName, AttentionLayout, EncoderConfig, LayerLayout
from model.families.family import Family, split_together
from model.families.keys import PaddingId, SharedKeys
from model.families.rotary import LONGEST, LayerType, layer_types, rotary, rotary_layout, windows


class ModernBertConfig(SharedKeys):
    """ModernBERT's keys of `config.json`, with transformers' defaults."""

    model_type: Literal["modernbert"]
    vocab_size: int = Field(gt=0, default=50368)
    hidden_act: ActivationName = Field("gelu", alias="hidden_activation")
    max_position_embeddings: int = Field(gt=0, default=8192)
    layer_norm_eps: float = Field(1e-5, gt=0, alias="norm_eps")
    pad_token_id: PaddingId = 50283
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    local_attention: int = Field(gt=0, default=128)
    global_attn_every_n_layers: int = Field(gt=0, default=3)
    layer_types: list[LayerType] | None = None


def read_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """Return the encoder of a ModernBERT checkpoint."""
    config = ModernBertConfig.model_validate({**fields, "type_vocab_size": 0})
    period = config.global_attn_every_n_layers
    kinds = layer_types(config.layer_types, config.num_hidden_layers, lambda i: i % period == 0)
    positions = {
        "full_attention": rotary(fields, "global_rope_theta", 160000.0, "full_attention"),
        "sliding_attention": rotary(fields, "local_rope_theta", 10000.0, "sliding_attention"),
    }
    layouts = {
        "max_position_embeddings": min(config.max_position_embeddings, LONGEST),
        "attention": AttentionLayout(
            bias=config.attention_bias,
            output_bias=config.attention_bias,
            windows=windows(kinds, config.local_attention // 2),
            **rotary_layout([positions[kind] for kind in kinds]),
        ),
        "layer": LayerLayout(
            order="pre_norm",
            norm_bias=config.norm_bias,
            first_attention_norm=False,
            gated=True,
            feed_forward_bias=config.mlp_bias,
        ),
        "embeddings": {"positions": "none"},
    }
    return EncoderConfig.model_validate(config.model_dump() | layouts)


MODERNBERT = Family(
    config=read_config,
    prefix="model.",
    outside=re.compile(r"^(head|decoder|classifier|lm_head)\.|inv_freq$"),
    renames=(
        (r"^embeddings\.tok_embeddings\.", "embeddings.word."),
        (r"^embeddings\.norm\.", "embeddings.layer_norm."),
        (r"\.attn\.score\.", ".attention.score_parameters."),
        (r"\.attn\.Wqkv\.", ".attention.together."),
        (r"\.attn\.Wo\.", ".attention.output."),
        (r"\.attn_norm\.", ".attention_norm."),
        (r"\.mlp\.Wi\.", ".feed_forward.together."),
        (r"\.mlp\.Wo\.", ".feed_forward.contract."),
        (r"\.mlp_norm\.", ".feed_forward_norm."),
    ),
    convert=split_together,
)
