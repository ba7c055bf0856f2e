"""SigLIP (Zhai et al. 2023, https://arxiv.org/abs/2303.15343): both towers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from model.config.encoder import ActivationName, EncoderConfig
from model.families.clip import TEXT_RENAMES, VISION_RENAMES, TextKeys
from model.families.family import Family
from model.families.pictures import PictureKeys


class SiglipTextConfig(TextKeys):
    """Keys of the text tower's `config.json`, with transformers' defaults."""

    model_type: Literal["siglip_text_model"]
    vocab_size: int = Field(gt=0, default=32000)
    hidden_size: int = Field(gt=0, default=768)
    intermediate_size: int = Field(gt=0, default=3072)
    num_attention_heads: int = Field(gt=0, default=12)
    max_position_embeddings: int = Field(gt=0, default=64)
    hidden_act: ActivationName = "gelu_pytorch_tanh"
    layer_norm_eps: float = Field(gt=0, default=1e-6)


def read_text_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """Return the encoder of SigLIP's text tower."""
    config = SiglipTextConfig.model_validate(fields)
    return config.encoder(config.model_type, causal=False)


class SiglipVisionConfig(PictureKeys):
    """Keys of the vision tower's `config.json`, with transformers' defaults."""

    model_type: Literal["siglip_vision_model"]
    hidden_act: ActivationName = "gelu_pytorch_tanh"
    layer_norm_eps: float = Field(gt=0, default=1e-6)

    def _layouts(self) -> dict[str, Any]:
        return self.picture_layouts(())


SIGLIP_TEXT = Family(
    config=read_text_config,
    prefix="text_model.",
    outside=re.compile(r"^(vision_model|head)\.|^logit_(scale|bias)$|^embeddings\.position_ids$"),
    renames=TEXT_RENAMES,
)
SIGLIP_VISION = Family(
    config=SiglipVisionConfig.read,
    prefix="vision_model.",
    outside=re.compile(
        r"^(text_model|head|classifier)\.|^logit_(scale|bias)$|^embeddings\.position_ids$"
    ),
    renames=((r"^post_layernorm\.", "final_norm."), *VISION_RENAMES),
)
