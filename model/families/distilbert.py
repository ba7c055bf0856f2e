"""DistilBERT (Sanh et al. 2019, https://arxiv.org/abs/1910.01108)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from model.config.encoder import ActivationName, EncoderConfig, NormalizerName, ScoreName
from model.families.family import Family
from model.families.keys import PaddingId


class DistilBertConfig(BaseModel):
    """DistilBERT's keys of `config.json`, with transformers' defaults."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    model_type: Literal["distilbert"]
    vocab_size: int = 30522
    max_position_embeddings: int = 512
    n_layers: int = 6
    n_heads: int = 12
    dim: int = 768
    hidden_dim: int = 3072
    activation: ActivationName = "gelu"
    pad_token_id: PaddingId = 0
    attention_score: ScoreName = "scaled_dot_product"
    attention_normalizer: NormalizerName = "softmax"


def read_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """Return the encoder of a DistilBERT checkpoint."""
    config = DistilBertConfig.model_validate(fields)
    return EncoderConfig(
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.dim,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        intermediate_size=config.hidden_dim,
        hidden_act=config.activation,
        max_position_embeddings=config.max_position_embeddings,
        type_vocab_size=0,
        layer_norm_eps=1e-12,
        pad_token_id=config.pad_token_id,
        attention_score=config.attention_score,
        attention_normalizer=config.attention_normalizer,
    )


_LAYER = r"^transformer\.layer\.(\d+)\."
DISTILBERT = Family(
    config=read_config,
    prefix="distilbert.",
    outside=re.compile(
        r"^(vocab_transform|vocab_layer_norm|vocab_projector|pre_classifier|classifier|qa_outputs)\."
        r"|^embeddings\.position_ids$"
    ),
    renames=(
        (r"^embeddings\.(word|position)_embeddings\.", r"embeddings.\1."),
        (r"^embeddings\.LayerNorm\.", "embeddings.layer_norm."),
        (_LAYER + r"attention\.score\.", r"layers.\1.attention.score_parameters."),
        (_LAYER + r"attention\.q_lin\.", r"layers.\1.attention.query."),
        (_LAYER + r"attention\.k_lin\.", r"layers.\1.attention.key."),
        (_LAYER + r"attention\.v_lin\.", r"layers.\1.attention.value."),
        (_LAYER + r"attention\.out_lin\.", r"layers.\1.attention.output."),
        (_LAYER + r"sa_layer_norm\.", r"layers.\1.attention_norm."),
        (_LAYER + r"ffn\.lin1\.", r"layers.\1.feed_forward.expand."),
        (_LAYER + r"ffn\.lin2\.", r"layers.\1.feed_forward.contract."),
        (_LAYER + r"output_layer_norm\.", r"layers.\1.output_norm."),
    ),
)
