"""Llama as a text encoder, and the parts that its descendants share.

Touvron et al. 2023, https://arxiv.org/abs/2302.13971.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import Field

from model.config.encoder import ActivationName, AttentionLayout, EncoderConfig, LayerLayout
from model.families.family import Family
from model.families.keys import LLAMA_RENAMES, SharedKeys
from model.families.rotary import LONGEST, LayerType, rotary, rotary_layout, windows


class LlamaKeys(SharedKeys):
    """Keys of `config.json` of Llama and its descendants, with Llama's defaults."""

    hidden_act: ActivationName = "silu"
    max_position_embeddings: int = Field(gt=0, default=2048)
    layer_norm_eps: float = Field(1e-6, gt=0, alias="rms_norm_eps")
    head_dim: int | None = Field(gt=0, default=None)
    num_key_value_heads: int | None = Field(gt=0, default=None)
    attention_bias: bool = False
    mlp_bias: bool = False
    is_causal: bool = True
    sliding_window: int | None = Field(gt=0, default=None)

    @property
    def kinds(self) -> list[LayerType]:
        """Kinds of the layers."""
        return ["full_attention"] * self.num_hidden_layers


class LlamaConfig(LlamaKeys):
    """Llama's keys of `config.json`, with transformers' defaults."""

    model_type: Literal["llama"]


def encoder_of(config: LlamaKeys, fields: Mapping[str, Any], **attention: Any) -> EncoderConfig:
    """Return the encoder of a checkpoint of Llama or of a descendant.

    `attention` are fields of the attention's layout that differ from Llama's.
    """
    longest = min(config.max_position_embeddings, LONGEST)
    layout = {
        "head_size": config.head_dim,
        "num_key_value_heads": config.num_key_value_heads,
        "bias": config.attention_bias,
        "output_bias": config.attention_bias,
        "causal": config.is_causal,
        # of a causal window the query itself is a part; of another, it is in the middle
        "windows": windows(
            config.kinds, (config.sliding_window or LONGEST) - config.is_causal, longest
        ),
        **rotary_layout([rotary(fields, "rope_theta", 10000.0)] * config.num_hidden_layers),
        **attention,
    }
    layouts = {
        "max_position_embeddings": longest,
        "attention": AttentionLayout.model_validate(layout),
        "layer": LayerLayout(
            order="pre_norm", norm="rms_norm", gated=True, feed_forward_bias=config.mlp_bias
        ),
        "embeddings": {"positions": "none", "norm": False},
    }
    return EncoderConfig.model_validate(config.model_dump() | layouts)


def read_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """Return the encoder of a Llama checkpoint."""
    return encoder_of(LlamaConfig.model_validate({**fields, "type_vocab_size": 0}), fields)


def llama_family(config: Callable[[Mapping[str, Any]], EncoderConfig]) -> Family:
    """Return a family with Llama's keys of tensors."""
    return Family(
        config=config,
        prefix="model.",
        outside=re.compile(r"^(lm_head|score)\.|inv_freq$"),
        renames=(
            *LLAMA_RENAMES,
            (r"\.post_attention_layernorm\.", ".feed_forward_norm."),
        ),
    )


LLAMA = llama_family(read_config)
