"""Qwen3 as a text encoder (Zhang et al. 2025, https://arxiv.org/abs/2506.05176)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from model.families.llama import llama_family
from model.families.qwen2 import QwenKeys


class Qwen3Config(QwenKeys):
    """Qwen3's keys of `config.json`, with transformers' defaults."""

    _attention: ClassVar[Mapping[str, Any]] = {"query_key_norm": True}

    model_type: Literal["qwen3"]
    head_dim: int | None = Field(gt=0, default=128)


QWEN3 = llama_family(Qwen3Config)
