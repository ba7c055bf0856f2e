"""NomicBERT (Nussbaum et al. 2024, https://arxiv.org/abs/2402.01613).

Its configs have two formats: transformers' own, and the format of the first published checkpoints,
with GPT-2's names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from model.config.encoder import ActivationName, AttentionLayout, EncoderConfig, LayerLayout
from model.families.bert import OUTSIDE
from model.families.family import Family, split_together
from model.families.keys import LLAMA_RENAMES, SharedKeys
from model.families.rotary import LONGEST, rotary, rotary_layout

_FIRST_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}


class NomicBertConfig(SharedKeys):
    """NomicBERT's keys of `config.json`, with transformers' defaults."""

    model_type: Literal["nomic_bert"]
    hidden_act: ActivationName = "silu"
    max_position_embeddings: int = Field(gt=0, default=2048)
    head_dim: int | None = Field(gt=0, default=None)
    prenorm: Literal[False] = False
    rotary_emb_fraction: Literal[1] = 1
    rotary_emb_interleaved: Literal[False] = False
    rotary_emb_scale_base: None = None
    rotary_scaling_factor: None = None
    qkv_proj_bias: Literal[False] = False
    mlp_fc1_bias: Literal[False] = False
    mlp_fc2_bias: Literal[False] = False
    use_rms_norm: Literal[False] = False
    num_experts: Literal[0] = 0

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> EncoderConfig:
        """Return the encoder of a NomicBERT checkpoint, of either format."""
        named = {_FIRST_NAMES.get(key, key): value for key, value in fields.items()}
        if named.get("hidden_act") == "swiglu":
            named["hidden_act"] = "silu"
        return super().read(named)

    def _layouts(self) -> dict[str, Any]:
        positions = rotary(self._fields, "rope_theta", 1000.0)
        return {
            "max_position_embeddings": min(self.max_position_embeddings, LONGEST),
            "attention": AttentionLayout(
                head_size=self.head_dim,
                bias=False,
                output_bias=False,
                **rotary_layout([positions] * self.num_hidden_layers),
            ),
            "layer": LayerLayout(gated=True, feed_forward_bias=False),
            "embeddings": {"positions": "none"},
        }


NOMIC_BERT = Family(
    config=NomicBertConfig.read,
    prefix="nomic_bert.",
    outside=re.compile(OUTSIDE + r"|inv_freq$"),
    renames=(
        (r"^emb_ln\.", "embeddings.layer_norm."),
        (r"^embeddings\.(word|token_type)_embeddings\.", r"embeddings.\1."),
        (r"^embeddings\.LayerNorm\.", "embeddings.layer_norm."),
        (r"^encoder\.layers\.", "layers."),
        *LLAMA_RENAMES,
        (r"\.attn\.Wqkv\.", ".attention.together."),
        (r"\.attn\.out_proj\.", ".attention.output."),
        (r"\.(post_attention_layernorm|norm1)\.", ".attention_norm."),
        (r"\.mlp\.fc11\.", ".feed_forward.expand."),
        (r"\.mlp\.fc12\.", ".feed_forward.gate."),
        (r"\.mlp\.fc2\.", ".feed_forward.contract."),
        (r"\.(post_mlp_layernorm|norm2)\.", ".output_norm."),
    ),
    convert=split_together,
)
