"""Qwen2 as a text encoder (Li et al. 2023, https://arxiv.org/abs/2308.03281, GTE-Qwen2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from model.families.llama import LlamaKeys, llama_family
from model.families.rotary import LayerType, layer_types


class QwenKeys(LlamaKeys):
    """Keys of `config.json` that Qwen2 and Qwen3 share, with transformers' defaults."""

    max_position_embeddings: int = Field(gt=0, default=32768)
    num_key_value_heads: int | None = Field(gt=0, default=32)
    mlp_bias: Literal[False] = False
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


class Qwen2Config(QwenKeys):
    """Qwen2's keys of `config.json`, with transformers' defaults."""

    _attention: ClassVar[Mapping[str, Any]] = {"bias": True, "output_bias": False}

    model_type: Literal["qwen2"]


QWEN2 = llama_family(Qwen2Config)
