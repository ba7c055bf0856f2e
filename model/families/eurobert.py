"""EuroBERT (Boizard et al. 2025, https://arxiv.org/abs/2503.05500)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from model.families.keys import PaddingId
from model.families.llama import LlamaKeys, llama_family


class EuroBertConfig(LlamaKeys):
    """EuroBERT's keys of `config.json`, with transformers' defaults."""

    _attention: ClassVar[Mapping[str, Any]] = {"causal": False}

    model_type: Literal["eurobert"]
    max_position_embeddings: int = Field(gt=0, default=8192)
    layer_norm_eps: float = Field(1e-5, gt=0, alias="rms_norm_eps")
    pad_token_id: PaddingId = 128001


EUROBERT = llama_family(EuroBertConfig)
