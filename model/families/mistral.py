"""Mistral as a text encoder (Wang et al. 2024, https://arxiv.org/abs/2401.00368)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from model.families.llama import LlamaKeys, llama_family
from model.families.rotary import LayerType


class MistralConfig(LlamaKeys):
    """Mistral's keys of `config.json`, with transformers' defaults."""

    model_type: Literal["mistral"]
    max_position_embeddings: int = Field(gt=0, default=131072)
    num_key_value_heads: int | None = Field(gt=0, default=8)
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    sliding_window: int | None = Field(gt=0, default=4096)

    @property
    def kinds(self) -> list[LayerType]:
        """Kinds of the layers: all have a window, or none."""
        kind: LayerType = "full_attention" if self.sliding_window is None else "sliding_attention"
        return [kind] * self.num_hidden_layers


MISTRAL = llama_family(MistralConfig)
