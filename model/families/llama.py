"""Llama and its descendants as text encoders (Touvron et al. 2023).

https://arxiv.org/abs/2302.13971
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from model.config.encoder import ActivationName, AttentionLayout, EmbeddingLayout, LayerLayout
from model.families.family import Family
from model.families.keys import Count, PaddingId, SharedKeys
from model.families.rotary import LONGEST, LayerType, layer_types, rotary, rotary_layout, windows

if TYPE_CHECKING:
    from torch import Tensor


class LlamaConfig(SharedKeys):
    """Keys of Llama's `config.json`, with transformers' defaults."""

    hidden_act: ActivationName = "silu"
    max_position_embeddings: Count = 2048
    layer_norm_eps: float = Field(1e-6, gt=0, alias="rms_norm_eps")
    head_dim: Count | None = None
    num_key_value_heads: Count | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    is_causal: bool = True
    sliding_window: Count | None = None

    _fixed: ClassVar[Mapping[str, Any]] = {"type_vocab_size": 0}
    _attention: ClassVar[Mapping[str, Any]] = {}
    """Fields of the attention's layout that differ from Llama's."""

    @property
    def kinds(self) -> list[LayerType]:
        """Kinds of the layers."""
        return ["full_attention"] * self.num_hidden_layers

    def _layouts(self) -> dict[str, Any]:
        # of a causal window the query itself is a part; of another, it is in the middle
        distance = (self.sliding_window or LONGEST) - self.is_causal
        layout = {
            "head_size": self.head_dim,
            "num_key_value_heads": self.num_key_value_heads,
            "bias": self.attention_bias,
            "output_bias": self.attention_bias,
            "causal": self.is_causal,
            "windows": windows(self.kinds, distance, self.longest),
            **rotary_layout([rotary(self._fields, "rope_theta", 10000.0)] * self.num_hidden_layers),
            **self._attention,
        }
        return {
            "max_position_embeddings": self.longest,
            "attention": AttentionLayout.model_validate(layout),
            "layer": LayerLayout(
                order="pre_norm", norm="rms_norm", gated=True, feed_forward_bias=self.mlp_bias
            ),
            "embeddings": {"positions": "none", "norm": False},
        }


class MistralConfig(LlamaConfig):
    """Keys of Mistral's `config.json` (Wang et al. 2024, https://arxiv.org/abs/2401.00368)."""

    max_position_embeddings: Count = 131072
    num_key_value_heads: Count | None = 8
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    sliding_window: Count | None = 4096

    @property
    def kinds(self) -> list[LayerType]:
        """Kinds of the layers: all have a window, or none."""
        kind: LayerType = "full_attention" if self.sliding_window is None else "sliding_attention"
        return [kind] * self.num_hidden_layers


class QwenKeys(LlamaConfig):
    """Keys of `config.json` that Qwen2 and Qwen3 share, with transformers' defaults."""

    max_position_embeddings: Count = 32768
    num_key_value_heads: Count | None = 32
    mlp_bias: Literal[False] = False
    use_sliding_window: bool = False
    sliding_window: Count | None = 4096
    max_window_layers: int = 28
    layer_types: list[LayerType] | None = None

    @property
    def kinds(self) -> list[LayerType]:
        """Kinds of the layers."""
        slides = self.use_sliding_window and self.sliding_window is not None
        full = self.max_window_layers if slides else self.num_hidden_layers
        return layer_types(self.layer_types, self.num_hidden_layers, lambda i: i < full)


class Qwen2Config(QwenKeys):
    """Keys of Qwen2's `config.json` (Li et al. 2023, GTE-Qwen2).

    https://arxiv.org/abs/2308.03281
    """

    _attention: ClassVar[Mapping[str, Any]] = {"bias": True, "output_bias": False}


class Qwen3Config(QwenKeys):
    """Keys of Qwen3's `config.json` (Zhang et al. 2025, https://arxiv.org/abs/2506.05176)."""

    _attention: ClassVar[Mapping[str, Any]] = {"query_key_norm": True}

    head_dim: Count | None = 128


class EuroBertConfig(LlamaConfig):
    """Keys of EuroBERT's `config.json` (Boizard et al. 2025, https://arxiv.org/abs/2503.05500)."""

    _attention: ClassVar[Mapping[str, Any]] = {"causal": False}

    max_position_embeddings: Count = 8192
    layer_norm_eps: float = Field(1e-5, gt=0, alias="rms_norm_eps")
    pad_token_id: PaddingId = 128001


class Gemma3Config(SharedKeys):
    """Keys of the `config.json` of Gemma 3's text model, as EmbeddingGemma uses it.

    https://arxiv.org/abs/2509.20354
    """

    _fixed: ClassVar[Mapping[str, Any]] = {"type_vocab_size": 0}

    vocab_size: Count = 262208
    hidden_size: Count = 2304
    intermediate_size: Count = 9216
    num_hidden_layers: Count = 26
    num_attention_heads: Count = 8
    hidden_act: ActivationName = Field("gelu_pytorch_tanh", alias="hidden_activation")
    max_position_embeddings: Count = 131072
    layer_norm_eps: float = Field(1e-6, gt=0, alias="rms_norm_eps")
    head_dim: Count = 256
    num_key_value_heads: Count = 4
    query_pre_attn_scalar: float = Field(gt=0, default=256)
    attention_bias: bool = False
    attn_logit_softcapping: None = None
    is_causal: bool = True
    use_bidirectional_attention: bool | None = False
    sliding_window: int = Field(ge=0, default=4096)
    sliding_window_pattern: Count = 6
    layer_types: list[LayerType] | None = None

    def _layouts(self) -> dict[str, Any]:
        pattern = self.sliding_window_pattern  # every n-th layer has full attention
        count = self.num_hidden_layers
        kinds = layer_types(self.layer_types, count, lambda i: (i + 1) % pattern == 0)
        local = {**self._fields, "rope_scaling": None}
        positions = {
            "full_attention": rotary(self._fields, "rope_theta", 1e6, "full_attention"),
            "sliding_attention": rotary(local, "rope_local_base_freq", 1e4, "sliding_attention"),
        }
        both_ways = bool(self.use_bidirectional_attention)
        window = self.sliding_window // 2 + 1 if both_ways else self.sliding_window
        return {
            "max_position_embeddings": self.longest,
            "attention": AttentionLayout(
                head_size=self.head_dim,
                num_key_value_heads=self.num_key_value_heads,
                bias=self.attention_bias,
                output_bias=self.attention_bias,
                query_scale=(self.head_dim / self.query_pre_attn_scalar) ** 0.5,
                query_key_norm=True,
                causal=self.is_causal and not both_ways,
                windows=windows(kinds, window - self.is_causal),
                **rotary_layout([positions[kind] for kind in kinds]),
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


def _family(keys: type[LlamaConfig]) -> Family:
    renames = ((r"\.post_attention_layernorm\.", ".feed_forward_norm."),)
    return Family(keys.read, "model.", renames=renames)


FAMILIES = {
    "eurobert": _family(EuroBertConfig),
    "gemma3_text": Family(
        Gemma3Config.read,
        "model.",
        renames=((r"\.post_attention_layernorm\.", ".attended_norm."),),
        convert=_convert,
    ),
    "llama": _family(LlamaConfig),
    "mistral": _family(MistralConfig),
    "qwen2": _family(Qwen2Config),
    "qwen3": _family(Qwen3Config),
}
