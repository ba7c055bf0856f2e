"""BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from model.config import ActivationName, EncoderConfig
from model.families.family import Family


class BertConfig(EncoderConfig):
    """BERT's keys of `config.json`, with transformers' defaults.

    Unknown keys are ignored, as transformers does; keys that would change the computation in a way
    that is not supported are refused.
    """

    model_type: Literal["bert"]
    hidden_act: ActivationName = "gelu"
    max_position_embeddings: int = Field(gt=0, default=512)
    type_vocab_size: int = Field(gt=0, default=2)
    layer_norm_eps: float = Field(gt=0, default=1e-12)
    pad_token_id: int = Field(ge=0, default=0)
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False


def read_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """The encoder of a BERT checkpoint.

    Raises:
        ValidationError: a key is missing, invalid or not supported.

    """
    return EncoderConfig.model_validate(BertConfig.model_validate(fields).model_dump())


BERT = Family(
    config=read_config,
    prefix="bert.",
    outside=re.compile(
        r"^(pooler|cls|classifier|qa_outputs|dropout)\."
        r"|^embeddings\.(position_ids|token_type_ids)$"
    ),
    renames=(
        (r"LayerNorm\.gamma$", "LayerNorm.weight"),  # of checkpoints from before 2019
        (r"LayerNorm\.beta$", "LayerNorm.bias"),
        (r"^embeddings\.(word|position|token_type)_embeddings\.", r"embeddings.\1."),
        (r"^embeddings\.LayerNorm\.", "embeddings.layer_norm."),
        (
            r"^encoder\.layer\.(\d+)\.attention\.self\.score\.",
            r"layers.\1.attention.score_parameters.",
        ),
        (r"^encoder\.layer\.(\d+)\.attention\.self\.", r"layers.\1.attention."),
        (r"^encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"layers.\1.attention.output."),
        (r"^encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.", r"layers.\1.attention_norm."),
        (r"^encoder\.layer\.(\d+)\.intermediate\.dense\.", r"layers.\1.feed_forward.expand."),
        (r"^encoder\.layer\.(\d+)\.output\.dense\.", r"layers.\1.feed_forward.contract."),
        (r"^encoder\.layer\.(\d+)\.output\.LayerNorm\.", r"layers.\1.output_norm."),
    ),
)
