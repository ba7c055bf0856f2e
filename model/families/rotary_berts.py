"""Encoders with BERT's vocabulary, rotary positions and gated feed-forwards, for long texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from model.config.encoder import (
    ActivationName,
    AttentionLayout,
    EncoderConfig,
    LayerLayout,
    RotaryScaling,
)
from model.families.family import Family
from model.families.keys import Count, PaddingId, SharedKeys
from model.families.rotary import LayerType, Rotary, layer_types, rotary, rotary_layout, windows


class ModernBertConfig(SharedKeys):
    """Keys of ModernBERT's `config.json` (Warner et al. 2024, https://arxiv.org/abs/2412.13663)."""

    _fixed: ClassVar[Mapping[str, Any]] = {"type_vocab_size": 0}

    vocab_size: Count = 50368
    hidden_act: ActivationName = Field("gelu", alias="hidden_activation")
    max_position_embeddings: Count = 8192
    layer_norm_eps: float = Field(1e-5, gt=0, alias="norm_eps")
    pad_token_id: PaddingId = 50283
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    local_attention: Count = 128
    global_attn_every_n_layers: Count = 3
    layer_types: list[LayerType] | None = None

    def _layouts(self) -> dict[str, Any]:
        fields, period = self._fields, self.global_attn_every_n_layers
        kinds = layer_types(self.layer_types, self.num_hidden_layers, lambda i: i % period == 0)
        positions = {
            "full_attention": rotary(fields, "global_rope_theta", 160000.0, "full_attention"),
            "sliding_attention": rotary(fields, "local_rope_theta", 10000.0, "sliding_attention"),
        }
        return {
            "max_position_embeddings": self.longest,
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
    """Keys of NomicBERT's `config.json` (Nussbaum et al. 2024, https://arxiv.org/abs/2402.01613).

    It has two formats: transformers' own, and the format of the first published checkpoints, with
    GPT-2's names.
    """

    hidden_act: ActivationName = "silu"
    max_position_embeddings: Count = 2048
    head_dim: Count | None = None
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
            "max_position_embeddings": self.longest,
            "attention": AttentionLayout(
                head_size=self.head_dim,
                bias=False,
                output_bias=False,
                **rotary_layout([positions] * self.num_hidden_layers),
            ),
            "layer": LayerLayout(gated=True, feed_forward_bias=False),
            "embeddings": {"positions": "none"},
        }


class GteConfig(SharedKeys):
    """Keys of GTE's `config.json` (Zhang et al. 2024, https://arxiv.org/abs/2407.19669).

    Checkpoints have two formats: transformers' own, and the published one, whose `model_type` is
    `new` or `gte` and which stores queries, keys and values in one tensor.
    """

    vocab_size: Count = 250048
    hidden_size: Count = 768
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 12
    intermediate_size: Count = 3072
    max_position_embeddings: Count = 8192
    type_vocab_size: int = Field(ge=0, default=1)
    pad_token_id: PaddingId = 1
    position_embedding_type: Literal["rope"] = "rope"  # type: ignore[assignment]
    layer_norm_type: Literal["layer_norm"] = "layer_norm"
    logn_attention_scale: Literal[False] = False

    def _layouts(self) -> dict[str, Any]:
        return {
            "max_position_embeddings": self.longest,
            "attention": AttentionLayout(
                **rotary_layout([self._positions()] * self.num_hidden_layers)
            ),
            "layer": LayerLayout(
                gated=True, feed_forward_bias=False, feed_forward_output_bias=True
            ),
            "embeddings": {"positions": "none"},
        }

    def _positions(self) -> Rotary:
        """Return the rotary positions; `ntk` scales the base by the factor f, divides by f^(2/p).

        It is fixed NTK scaling, with the frequencies (f · base)^(−2i/p) / f^(2/p).
        """
        fields, base = self._fields, 160000.0 if self.model_type == "gte" else 10000.0
        scaling = fields.get("rope_scaling")
        ntk = isinstance(scaling, Mapping) and scaling.get("type", scaling.get("rope_type"))
        if ntk != "ntk":
            return rotary(fields, "rope_theta", base)
        factor = _NtkScaling.model_validate(scaling).factor
        plain = rotary({**fields, "rope_scaling": None}, "rope_theta", base)
        shift = factor ** (2 / (self.hidden_size // self.num_attention_heads))
        return Rotary(plain.base * factor, RotaryScaling(kind="linear", factor=shift))


class _NtkScaling(BaseModel):
    """`rope_scaling` of the published format."""

    model_config = ConfigDict(extra="ignore")

    factor: float = Field(gt=0)
    mixed_b: None = None


FAMILIES = {
    "modernbert": Family(ModernBertConfig.read, "model."),
    "nomic_bert": Family(NomicBertConfig.read, "nomic_bert."),
    **dict.fromkeys(("gte", "new"), Family(GteConfig.read, "new.")),
}
