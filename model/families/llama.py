"""Llama as a text encoder, and the parts that its descendants share.

Touvron et al. 2023, https://arxiv.org/abs/2302.13971.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from model.config.encoder import ActivationName, AttentionLayout, LayerLayout
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

    _fixed: ClassVar[Mapping[str, Any]] = {"type_vocab_size": 0}
    _attention: ClassVar[Mapping[str, Any]] = {}
    """Fields of the attention's layout that differ from Llama's."""

    @property
    def kinds(self) -> list[LayerType]:
        """Kinds of the layers."""
        return ["full_attention"] * self.num_hidden_layers

    def _layouts(self) -> dict[str, Any]:
        longest = min(self.max_position_embeddings, LONGEST)
        layout = {
            "head_size": self.head_dim,
            "num_key_value_heads": self.num_key_value_heads,
            "bias": self.attention_bias,
            "output_bias": self.attention_bias,
            "causal": self.is_causal,
            # of a causal window the query itself is a part; of another, it is in the middle
            "windows": windows(
                self.kinds, (self.sliding_window or LONGEST) - self.is_causal, longest
            ),
            **rotary_layout([rotary(self._fields, "rope_theta", 10000.0)] * self.num_hidden_layers),
            **self._attention,
        }
        return {
            "max_position_embeddings": longest,
            "attention": AttentionLayout.model_validate(layout),
            "layer": LayerLayout(
                order="pre_norm", norm="rms_norm", gated=True, feed_forward_bias=self.mlp_bias
            ),
            "embeddings": {"positions": "none", "norm": False},
        }


class LlamaConfig(LlamaKeys):
    """Llama's keys of `config.json`, with transformers' defaults."""

    model_type: Literal["llama"]


def llama_family(keys: type[LlamaKeys]) -> Family:
    """Return a family with Llama's keys of tensors."""
    return Family(
        config=keys.read,
        prefix="model.",
        outside=re.compile(r"^(lm_head|score)\.|inv_freq$"),
        renames=(
            *LLAMA_RENAMES,
            (r"\.post_attention_layernorm\.", ".feed_forward_norm."),
        ),
    )


LLAMA = llama_family(LlamaConfig)
