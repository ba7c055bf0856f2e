"""CLIP (Radford et al. 2021, https://arxiv.org/abs/2103.00020): the text tower."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from model.config.encoder import ActivationName, AttentionLayout, EncoderConfig, LayerLayout
from model.families.family import Family
from model.families.keys import PaddingId


class TowerKeys(BaseModel):
    """Keys of `config.json` that the towers of CLIP and SigLIP share."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0, default=12)
    num_attention_heads: int = Field(gt=0)
    hidden_act: ActivationName
    layer_norm_eps: float = Field(gt=0)


class TextKeys(TowerKeys):
    """Keys of `config.json` that both text towers share."""

    vocab_size: int = Field(gt=0)
    max_position_embeddings: int = Field(gt=0)
    pad_token_id: PaddingId = 1

    def encoder(self, model_type: str, *, causal: bool) -> EncoderConfig:
        """Return the tower's encoder.

        Args:
            model_type: name of the tower's family.
            causal: whether tokens only attend to themselves and to earlier tokens.

        """
        return EncoderConfig.model_validate(
            self.model_dump()
            | {
                "model_type": model_type,
                "type_vocab_size": 0,
                "embeddings": {"norm": False},
                "attention": AttentionLayout(causal=causal),
                "layer": LayerLayout(order="pre_norm"),
            }
        )


class ClipTextConfig(TextKeys):
    """Keys of the text tower's `config.json`, with transformers' defaults."""

    model_type: Literal["clip_text_model"]
    vocab_size: int = Field(gt=0, default=49408)
    hidden_size: int = Field(gt=0, default=512)
    intermediate_size: int = Field(gt=0, default=2048)
    num_attention_heads: int = Field(gt=0, default=8)
    max_position_embeddings: int = Field(gt=0, default=77)
    hidden_act: ActivationName = "quick_gelu"
    layer_norm_eps: float = Field(gt=0, default=1e-5)


def read_text_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """Return the encoder of CLIP's text tower.

    Raises:
        ValidationError: a key is missing, invalid or not supported.

    """
    config = ClipTextConfig.model_validate(fields)
    return config.encoder(config.model_type, causal=True)


LAYER_RENAMES = (
    (r"^encoder\.layers\.", "layers."),
    (r"\.self_attn\.q_proj\.", ".attention.query."),
    (r"\.self_attn\.k_proj\.", ".attention.key."),
    (r"\.self_attn\.v_proj\.", ".attention.value."),
    (r"\.self_attn\.out_proj\.", ".attention.output."),
    (r"\.layer_norm1\.", ".attention_norm."),
    (r"\.layer_norm2\.", ".feed_forward_norm."),
    (r"\.mlp\.fc1\.", ".feed_forward.expand."),
    (r"\.mlp\.fc2\.", ".feed_forward.contract."),
)
"""Keys of a tower's layers → the encoder's."""
TEXT_RENAMES = (
    (r"^embeddings\.token_embedding\.", "embeddings.word."),
    (r"^embeddings\.position_embedding\.", "embeddings.position."),
    (r"^final_layer_norm\.", "final_norm."),
    *LAYER_RENAMES,
)
"""Keys of a text tower → the encoder's."""
CLIP_TEXT = Family(
    config=read_text_config,
    prefix="text_model.",
    outside=re.compile(
        r"^(vision_model|text_projection|visual_projection)\.|^logit_scale$"
        r"|^embeddings\.position_ids$"
    ),
    renames=TEXT_RENAMES,
)
