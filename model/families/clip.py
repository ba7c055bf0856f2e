"""CLIP (Radford et al. 2021, https://arxiv.org/abs/2103.00020): both towers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from model.config.encoder import ActivationName, AttentionLayout, EncoderConfig, LayerLayout
from model.families.family import Family
from model.families.keys import PaddingId
from model.families.pictures import PictureKeys, Size

if TYPE_CHECKING:
    from torch import Tensor


class TextKeys(BaseModel):
    """Keys of `config.json` that the text towers of CLIP and SigLIP share."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0, default=12)
    num_attention_heads: int = Field(gt=0)
    hidden_act: ActivationName
    layer_norm_eps: float = Field(gt=0)
    max_position_embeddings: int = Field(gt=0)
    pad_token_id: PaddingId = 1

    def encoder(self, model_type: str, *, causal: bool) -> EncoderConfig:
        """Return the tower's encoder."""
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
    """Return the encoder of CLIP's text tower."""
    config = ClipTextConfig.model_validate(fields)
    return config.encoder(config.model_type, causal=True)


class ClipVisionConfig(PictureKeys):
    """Keys of the vision tower's `config.json`, with transformers' defaults."""

    model_type: Literal["clip_vision_model"]
    patch_size: Size = (32, 32)
    hidden_act: ActivationName = "quick_gelu"
    layer_norm_eps: float = Field(gt=0, default=1e-5)

    def _layouts(self) -> dict[str, Any]:
        layouts = self.picture_layouts(("[CLS]",))
        layouts["embeddings"] = layouts["embeddings"].model_copy(update={"norm": True})
        layouts["layer"] = LayerLayout(order="pre_norm", final_norm=False)
        return layouts


def class_token(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the class token's vector `[H]` as `[1, H]`, and any other tensor as it is."""
    return {name: tensor[None] if name == _CLASS else tensor}


_CLASS = "embeddings.special.0"
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
VISION_RENAMES = (
    (r"^embeddings\.patch_embedding\.", "embeddings.patch."),
    (r"^embeddings\.position_embedding\.", "embeddings.position."),
    *LAYER_RENAMES,
)
"""Keys of a vision tower → keys in `model.encoder.picture_tensors`."""
CLIP_TEXT = Family(
    config=read_text_config,
    prefix="text_model.",
    outside=re.compile(
        r"^(vision_model|text_projection|visual_projection)\.|^logit_scale$"
        r"|^embeddings\.position_ids$"
    ),
    renames=TEXT_RENAMES,
)
CLIP_VISION = Family(
    config=ClipVisionConfig.read,
    prefix="vision_model.",
    outside=re.compile(
        r"^(text_model|text_projection|visual_projection|post_layernorm|classifier)\."
        r"|^logit_scale$|^embeddings\.position_ids$"
    ),
    renames=(
        (r"^embeddings\.class_embedding$", _CLASS),
        (r"^pre_layrnorm\.", "embeddings.layer_norm."),
        *VISION_RENAMES,
    ),
    convert=class_token,
)
