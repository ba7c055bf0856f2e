"""Qwen3 as a text encoder (Zhang et al. 2025, https://arxiv.org/abs/2506.05176)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from model.config.encoder import ActivationName, AttentionLayout, EncoderConfig, LayerLayout
from model.families.family import Family
from model.families.keys import LLAMA_RENAMES, SharedKeys
from model.families.rotary import LONGEST, LayerType, layer_types, rotary_base, windows


class Qwen3Config(SharedKeys):
    """Qwen3's keys of `config.json`, with transformers' defaults."""

    model_type: Literal["qwen3"]
    hidden_act: ActivationName = "silu"
    max_position_embeddings: int = Field(gt=0, default=32768)
    layer_norm_eps: float = Field(1e-6, gt=0, alias="rms_norm_eps")
    head_dim: int = Field(gt=0, default=128)
    num_key_value_heads: int | None = Field(gt=0, default=32)
    attention_bias: bool = False
    is_causal: bool = True
    use_sliding_window: bool = False
    sliding_window: int | None = Field(gt=0, default=4096)
    max_window_layers: int = 28
    layer_types: list[LayerType] | None = None

    @property
    def kinds(self) -> list[LayerType]:
        """Kinds of the layers."""
        slides = self.use_sliding_window and self.sliding_window is not None
        full = self.max_window_layers if slides else self.num_hidden_layers
        return layer_types(self.layer_types, self.num_hidden_layers, lambda i: i < full)


def read_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """Return the encoder of a Qwen3 checkpoint.

    Raises:
        ValidationError: a key is missing, invalid or not supported.

    """
    config = Qwen3Config.model_validate({**fields, "type_vocab_size": 0})
    base = rotary_base(fields, "rope_theta", 10000.0)
    layouts = {
        "max_position_embeddings": min(config.max_position_embeddings, LONGEST),
        "attention": AttentionLayout(
            head_size=config.head_dim,
            num_key_value_heads=config.num_key_value_heads,
            bias=config.attention_bias,
            output_bias=config.attention_bias,
            query_key_norm=True,
            causal=config.is_causal,
            windows=windows(config.kinds, (config.sliding_window or LONGEST) - config.is_causal),
            rotary_bases=(base,) * config.num_hidden_layers,
        ),
        "layer": LayerLayout(
            order="pre_norm", norm="rms_norm", gated=True, feed_forward_bias=False
        ),
        "embeddings": {"positions": "none", "norm": False},
    }
    return EncoderConfig.model_validate(config.model_dump() | layouts)


QWEN3 = Family(
    config=read_config,
    prefix="model.",
    outside=re.compile(r"^(lm_head|score)\.|inv_freq$"),
    renames=(
        *LLAMA_RENAMES,
        (r"\.post_attention_layernorm\.", ".feed_forward_norm."),
    ),
)
