"""BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805), and parts of its descendants."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from model.config.encoder import EncoderConfig
from model.families.family import Family
from model.families.keys import SharedKeys


class BertConfig(SharedKeys):
    """Keys of BERT's `config.json`."""

    model_type: Literal["bert"]
    type_vocab_size: int = Field(gt=0, default=2)


def read_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """Return the encoder of a BERT checkpoint.

    Raises:
        ValidationError: a key is missing, invalid or not supported.

    """
    return EncoderConfig.model_validate(BertConfig.model_validate(fields).model_dump())


OUTSIDE = (
    r"^(pooler|cls|classifier|lm_head|qa_outputs|dropout)\."
    r"|^embeddings\.(position_ids|token_type_ids)$"
)
"""Keys of BERT and its descendants outside the encoder: poolers, task heads, and old buffers."""
RENAMES = (
    (r"LayerNorm\.gamma$", "LayerNorm.weight"),  # in checkpoints from before 2019
    (r"LayerNorm\.beta$", "LayerNorm.bias"),
    (r"^embeddings\.(word|position|token_type)_embeddings\.", r"embeddings.\1."),
    (r"^embeddings\.LayerNorm\.", "embeddings.layer_norm."),
    (r"^encoder\.layer\.(\d+)\.attention\.self\.score\.", r"layers.\1.attention.score_parameters."),
    (r"^encoder\.layer\.(\d+)\.attention\.self\.", r"layers.\1.attention."),
    (r"^encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"layers.\1.attention.output."),
    (r"^encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.", r"layers.\1.attention_norm."),
    (r"^encoder\.layer\.(\d+)\.intermediate\.dense\.", r"layers.\1.feed_forward.expand."),
    (r"^encoder\.layer\.(\d+)\.output\.dense\.", r"layers.\1.feed_forward.contract."),
    (r"^encoder\.layer\.(\d+)\.output\.LayerNorm\.", r"layers.\1.output_norm."),
)
"""BERT's keys → the encoder's."""

BERT = Family(config=read_config, prefix="bert.", outside=re.compile(OUTSIDE), renames=RENAMES)
