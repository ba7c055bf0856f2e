"""ALBERT (Lan et al. 2020, https://arxiv.org/abs/1909.11942): BERT with shared layers."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from model.config.encoder import ActivationName, EmbeddingLayout, LayerLayout
from model.families.family import Family
from model.families.keys import SharedKeys


class AlbertConfig(SharedKeys):
    """ALBERT's keys of `config.json`, with transformers' defaults."""

    model_type: Literal["albert"]
    hidden_act: ActivationName = "gelu_new"
    embedding_size: int = Field(gt=0, default=128)
    num_hidden_groups: int = Field(gt=0, default=1)
    inner_group_num: Literal[1] = 1

    def _layouts(self) -> dict[str, Any]:
        return {
            "embeddings": EmbeddingLayout(size=self.embedding_size, projection="after_norm"),
            "layer": LayerLayout(groups=self.num_hidden_groups),
        }


_LAYER = r"^encoder\.albert_layer_groups\.(\d+)\.albert_layers\.0\."
ALBERT = Family(
    config=AlbertConfig.read,
    prefix="albert.",
    outside=re.compile(
        r"^(pooler|predictions|sop_classifier|classifier|qa_outputs)\."
        r"|^embeddings\.(position_ids|token_type_ids)$"
    ),
    renames=(
        (r"^embeddings\.(word|position|token_type)_embeddings\.", r"embeddings.\1."),
        (r"^embeddings\.LayerNorm\.", "embeddings.layer_norm."),
        (r"^encoder\.embedding_hidden_mapping_in\.", "embeddings.projection."),
        (_LAYER + r"attention\.score\.", r"layers.\1.attention.score_parameters."),
        (_LAYER + r"attention\.(query|key|value)\.", r"layers.\1.attention.\2."),
        (_LAYER + r"attention\.dense\.", r"layers.\1.attention.output."),
        (_LAYER + r"attention\.LayerNorm\.", r"layers.\1.attention_norm."),
        (_LAYER + r"ffn\.", r"layers.\1.feed_forward.expand."),
        (_LAYER + r"ffn_output\.", r"layers.\1.feed_forward.contract."),
        (_LAYER + r"full_layer_layer_norm\.", r"layers.\1.output_norm."),
    ),
)
