"""ModernBERT (Warner et al. 2024, https://arxiv.org/abs/2412.13663)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from model.config.encoder import ActivationName, AttentionLayout, LayerLayout
from model.families.family import Family, split_together
from model.families.keys import PaddingId, SharedKeys
from model.families.rotary import LONGEST, LayerType, layer_types, rotary, rotary_layout, windows


class ModernBertConfig(SharedKeys):
    """ModernBERT's keys of `config.json`, with transformers' defaults."""

    _fixed: ClassVar[Mapping[str, Any]] = {"type_vocab_size": 0}

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

    def _layouts(self) -> dict[str, Any]:
        period = self.global_attn_every_n_layers
        kinds = layer_types(self.layer_types, self.num_hidden_layers, lambda i: i % period == 0)
        positions = {
            "full_attention": rotary(self._fields, "global_rope_theta", 160000.0, "full_attention"),
            "sliding_attention": rotary(
                self._fields, "local_rope_theta", 10000.0, "sliding_attention"
            ),
        }
        return {
            "max_position_embeddings": min(self.max_position_embeddings, LONGEST),
            "attention": AttentionLayout(
                bias=self.attention_bias,
                output_bias=self.attention_bias,
                windows=windows(kinds, self.local_attention // 2),
                **rotary_layout([positions[kind] for kind in kinds]),
            ),
            "layer": LayerLayout(
                order="pre_norm",
                norm_bias=self.norm_bias,
                first_attention_norm=False,
                gated=True,
                feed_forward_bias=self.mlp_bias,
            ),
            "embeddings": {"positions": "none"},
        }


MODERNBERT = Family(
    config=ModernBertConfig.read,
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
