"""Qwen3 as a text encoder (Zhang et al. 2025, https://arxiv.org/abs/2506.05176)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from model.config.encoder import EncoderConfig
from model.families.llama import encoder_of, llama_family
from model.families.qwen2 import QwenKeys


class Qwen3Config(QwenKeys):
    """Qwen3's keys of `config.json`, with transformers' defaults."""

    model_type: Literal["qwen3"]
    head_dim: int | None = Field(gt=0, default=128)


def read_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """Return the encoder of a Qwen3 checkpoint."""
    config = Qwen3Config.model_validate({**fields, "type_vocab_size": 0})
    return encoder_of(config, fields, query_key_norm=True)


QWEN3 = llama_family(read_config)
