"""DeBERTa, versions 2 and 3 (He et al. 2021, https://arxiv.org/abs/2006.03654 and 2111.09543)."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from model.config.encoder import AttentionLayout, EmbeddingLayout, LogBuckets
from model.families.bert import OUTSIDE, RENAMES
from model.families.family import Family
from model.families.keys import SharedKeys
from model.families.rotary import LONGEST


class DebertaV2Config(SharedKeys):
    """DeBERTa's keys of `config.json`, with transformers' defaults."""

    model_type: Literal["deberta-v2"]
    type_vocab_size: int = Field(ge=0, default=0)
    layer_norm_eps: float = Field(gt=0, default=1e-7)
    embedding_size: int | None = Field(gt=0, default=None)
    position_biased_input: bool = True
    relative_attention: bool = False
    max_relative_positions: int = -1
    position_buckets: int = -1
    pos_att_type: tuple[Literal["c2p", "p2c"], ...] = ()
    norm_rel_ebd: Literal["none", "layer_norm"] = "none"
    share_att_key: bool = False
    conv_kernel_size: Literal[0] = 0
    attention_score: Literal["scaled_dot_product"] = "scaled_dot_product"

    @field_validator("pos_att_type", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [kind.strip() for kind in value.lower().split("|") if kind.strip()]
        return value or ()

    @model_validator(mode="after")
    def _every_distance_has_a_bucket(self) -> Self:
        """Raise an error if the formula of the buckets would divide by zero."""
        middle, farthest = self.position_buckets // 2, self.buckets.max_distance
        if self.position_buckets > 0 and middle in (0, farthest - 1):
            raise ValueError(
                f"position_buckets {self.position_buckets} with max_relative_positions {farthest} "
                "give far tokens no bucket"
            )
        return self

    @property
    def buckets(self) -> LogBuckets:
        """Buckets of relative positions."""
        farthest = self.max_relative_positions
        farthest = self.max_position_embeddings if farthest < 1 else farthest
        if self.position_buckets < 1:
            return LogBuckets(kind="exact", count=farthest, max_distance=farthest)
        return LogBuckets(kind="deberta", count=self.position_buckets, max_distance=farthest)

    def _layouts(self) -> dict[str, Any]:
        size = self.embedding_size or self.hidden_size
        relative = self.relative_attention
        return {
            "max_position_embeddings": min(self.max_position_embeddings, LONGEST),
            "attention": AttentionLayout(
                # scores are divided by the root of p times the number of their terms
                query_scale=(1 + len(set(self.pos_att_type))) ** -0.5,
                disentangled=self.pos_att_type if relative else (),
                position_buckets=self.buckets if relative else None,
                position_norm=self.norm_rel_ebd == "layer_norm",
                share_position_projections=self.share_att_key,
            ),
            "embeddings": EmbeddingLayout(
                size=size,
                positions="table" if self.position_biased_input else "none",
                projection="none" if size == self.hidden_size else "before_norm",
                projection_bias=False,
            ),
        }


_SELF = r"^encoder\.layer\.(\d+)\.attention\.self\."
DEBERTA_V2 = Family(
    config=DebertaV2Config.read,
    prefix="deberta.",
    outside=re.compile(OUTSIDE + r"|^(lm_predictions|mask_predictions)\."),
    renames=(
        (r"^embeddings\.embed_proj\.", "embeddings.projection."),
        (r"^encoder\.rel_embeddings\.", "relative.embeddings."),
        (r"^encoder\.LayerNorm\.", "relative.norm."),
        (_SELF + r"pos_(query|key)_proj\.", r"layers.\1.attention.position_\2."),
        (_SELF + r"(query|key|value)_proj\.", r"layers.\1.attention.\2."),
        *RENAMES,
    ),
)
