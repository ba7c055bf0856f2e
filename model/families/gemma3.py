"""Gemma 3's text model, as EmbeddingGemma uses it (https://arxiv.org/abs/2509.20354)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from model.config.encoder import ActivationName, AttentionLayout, EmbeddingLayout, LayerLayout
from model.families.family import Family
from model.families.keys import LLAMA_RENAMES, SharedKeys
from model.families.rotary import LONGEST, LayerType, layer_types, rotary, rotary_layout, windows

if TYPE_CHECKING:
    from torch import Tensor


class Gemma3Config(SharedKeys):
    """Gemma 3's keys of `config.json`, with transformers' defaults."""

    _fixed: ClassVar[Mapping[str, Any]] = {"type_vocab_size": 0}

    model_type: Literal["gemma3_text"]
    vocab_size: int = Field(gt=0, default=262208)
    hidden_size: int = Field(gt=0, default=2304)
    intermediate_size: int = Field(gt=0, default=9216)
    num_hidden_layers: int = Field(gt=0, default=26)
    num_attention_heads: int = Field(gt=0, default=8)
    hidden_act: ActivationName = Field("gelu_pytorch_tanh", alias="hidden_activation")
    max_position_embeddings: int = Field(gt=0, default=131072)
    layer_norm_eps: float = Field(1e-6, gt=0, alias="rms_norm_eps")
    head_dim: int = Field(gt=0, default=256)
    num_key_value_heads: int = Field(gt=0, default=4)
    query_pre_attn_scalar: float = Field(gt=0, default=256)
    attention_bias: bool = False
    attn_logit_softcapping: None = None
    is_causal: bool = True
    use_bidirectional_attention: bool | None = False
    sliding_window: int = Field(ge=0, default=4096)
    sliding_window_pattern: int = Field(gt=0, default=6)
    layer_types: list[LayerType] | None = None

    @property
    def kinds(self) -> list[LayerType]:
        """Kinds of the layers: every n-th one has full attention."""
        pattern = self.sliding_window_pattern
        return layer_types(
            self.layer_types, self.num_hidden_layers, lambda i: (i + 1) % pattern == 0
        )

    def _layouts(self) -> dict[str, Any]:
        positions = {
            "full_attention": rotary(self._fields, "rope_theta", 1e6, "full_attention"),
            "sliding_attention": rotary(
                {**self._fields, "rope_scaling": None},
                "rope_local_base_freq",
                1e4,
                "sliding_attention",
            ),
        }
        both_ways = bool(self.use_bidirectional_attention)
        window = self.sliding_window // 2 + 1 if both_ways else self.sliding_window
        return {
            "max_position_embeddings": min(self.max_position_embeddings, LONGEST),
            "attention": AttentionLayout(
                head_size=self.head_dim,
                num_key_value_heads=self.num_key_value_heads,
                bias=self.attention_bias,
                output_bias=self.attention_bias,
                query_scale=(self.head_dim / self.query_pre_attn_scalar) ** 0.5,
                query_key_norm=True,
                causal=self.is_causal and not both_ways,
                windows=windows(self.kinds, window - self.is_causal),
                **rotary_layout([positions[kind] for kind in self.kinds]),
            ),
            "layer": LayerLayout(
                order="sandwich_norm", norm="rms_norm", gated=True, feed_forward_bias=False
            ),
            "embeddings": EmbeddingLayout(
                positions="none", norm=False, scale=self.hidden_size**0.5
            ),
        }


def _convert(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the tensor; a norm's weight is stored as its difference from one."""
    return {name: tensor.float() + 1 if name.endswith("norm.weight") else tensor}


GEMMA3 = Family(
    config=Gemma3Config.read,
    prefix="model.",
    outside=re.compile(r"^lm_head\.|inv_freq$"),
    renames=(
        *LLAMA_RENAMES,
        (r"\.post_attention_layernorm\.", ".attended_norm."),
        (r"\.pre_feedforward_layernorm\.", ".feed_forward_norm."),
        (r"\.post_feedforward_layernorm\.", ".output_norm."),
    ),
    convert=_convert,
)
