"""GTE's long-context encoders (Zhang et al. 2024, https://arxiv.org/abs/2407.19669).

Checkpoints have two formats: transformers' own, and the published one, whose `model_type` is `new`
or `gte` and which stores queries, keys and values in one tensor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from model.config.encoder import AttentionLayout, LayerLayout, RotaryScaling
from model.families.bert import OUTSIDE
from model.families.family import Family, split_together
from model.families.keys import LLAMA_RENAMES, PaddingId, SharedKeys
from model.families.rotary import LONGEST, Rotary, rotary, rotary_layout

_BASES = {"gte": 160000.0, "new": 10000.0}
"""`model_type` → default base of rotary positions."""


class GteConfig(SharedKeys):
    """GTE's keys of `config.json`, with transformers' defaults."""

    model_type: Literal["gte", "new"]
    vocab_size: int = Field(gt=0, default=250048)
    hidden_size: int = Field(gt=0, default=768)
    num_hidden_layers: int = Field(gt=0, default=12)
    num_attention_heads: int = Field(gt=0, default=12)
    intermediate_size: int = Field(gt=0, default=3072)
    max_position_embeddings: int = Field(gt=0, default=8192)
    type_vocab_size: int = Field(ge=0, default=1)
    pad_token_id: PaddingId = 1
    position_embedding_type: Literal["rope"] = "rope"  # type: ignore[assignment]
    layer_norm_type: Literal["layer_norm"] = "layer_norm"
    logn_attention_scale: Literal[False] = False

    def _layouts(self) -> dict[str, Any]:
        return {
            "max_position_embeddings": min(self.max_position_embeddings, LONGEST),
            "attention": AttentionLayout(
                **rotary_layout([_positions(self, self._fields)] * self.num_hidden_layers)
            ),
            "layer": LayerLayout(
                gated=True, feed_forward_bias=False, feed_forward_output_bias=True
            ),
            "embeddings": {"positions": "none"},
        }


class _NtkScaling(BaseModel):
    """`rope_scaling` of the published format."""

    model_config = ConfigDict(extra="ignore")

    factor: float = Field(gt=0)
    mixed_b: None = None


def _positions(config: GteConfig, fields: Mapping[str, Any]) -> Rotary:
    """Return the rotary positions; `ntk` scales the base by the factor f, and divides by f^(2/p).

    It is fixed NTK scaling, with the frequencies (f · base)^(−2i/p) / f^(2/p).
    """
    scaling = fields.get("rope_scaling")
    if not isinstance(scaling, Mapping) or scaling.get("type", scaling.get("rope_type")) != "ntk":
        return rotary(fields, "rope_theta", _BASES[config.model_type])
    factor = _NtkScaling.model_validate(scaling).factor
    plain = rotary({**fields, "rope_scaling": None}, "rope_theta", _BASES[config.model_type])
    size = config.hidden_size // config.num_attention_heads
    return Rotary(plain.base * factor, RotaryScaling(kind="linear", factor=factor ** (2 / size)))


GTE = Family(
    config=GteConfig.read,
    prefix="new.",
    outside=re.compile(OUTSIDE + r"|inv_freq$|^gte\.pooler\."),
    renames=(
        (r"^gte\.", ""),
        (r"^embeddings\.(word|token_type)_embeddings\.", r"embeddings.\1."),
        (r"^embeddings\.LayerNorm\.", "embeddings.layer_norm."),
        (r"^encoder\.layer\.", "layers."),
        (r"\.attention\.qkv_proj\.", ".attention.together."),
        (r"\.attention\.(q|k|v|o)_proj\.", r".self_attn.\1_proj."),
        *LLAMA_RENAMES,
        (r"\.mlp\.up_gate_proj\.", ".feed_forward.up_gate."),
        (r"\.(post_attention_layernorm|attn_ln)\.", ".attention_norm."),
        (r"\.(post_mlp_layernorm|mlp_ln)\.", ".output_norm."),
    ),
    convert=split_together,
)
