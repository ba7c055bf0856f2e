"""EuroBERT (Boizard et al. 2025, https://arxiv.org/abs/2503.05500)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from model.config.encoder import EncoderConfig
from model.families.keys import PaddingId
from model.families.llama import LlamaKeys, encoder_of, llama_family


class EuroBertConfig(LlamaKeys):
    """EuroBERT's keys of `config.json`, with transformers' defaults."""

    model_type: Literal["eurobert"]
    max_position_embeddings: int = Field(gt=0, default=8192)
    layer_norm_eps: float = Field(1e-5, gt=0, alias="rms_norm_eps")
    pad_token_id: PaddingId = 128001


def read_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """Return the encoder of a EuroBERT checkpoint."""
    config = EuroBertConfig.model_validate({**fields, "type_vocab_size": 0})
    return encoder_of(config, fields, causal=False)


EUROBERT = llama_family(read_config)
