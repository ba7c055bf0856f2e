"""BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805), and encoders with its layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from model.config.encoder import (
    ActivationName,
    AttentionLayout,
    EmbeddingLayout,
    LayerLayout,
    LogBuckets,
)
from model.families.family import Family
from model.families.keys import Count, SharedKeys


class BertConfig(SharedKeys):
    """Keys of BERT's `config.json`, and of JinaBERT's, which has the same `model_type`.

    Günther et al. 2023, https://arxiv.org/abs/2310.19923.
    """

    type_vocab_size: Count = 2
    position_embedding_type: Literal["absolute", "alibi"] = "absolute"  # type: ignore[assignment]
    feed_forward_type: Literal["original", "geglu", "reglu"] = "original"

    def _layouts(self) -> dict[str, Any]:
        layouts: dict[str, Any] = {}
        if self.position_embedding_type == "alibi":
            layouts |= {
                "attention": AttentionLayout(alibi=True),
                "embeddings": EmbeddingLayout(positions="none"),
                "max_position_embeddings": self.longest,
            }
        if self.feed_forward_type != "original":
            layouts |= {
                "hidden_act": "gelu" if self.feed_forward_type == "geglu" else "relu",
                "layer": LayerLayout(
                    gated=True, feed_forward_bias=False, feed_forward_output_bias=True
                ),
            }
        return layouts


_JINA_NORMS = (
    r"\.attention\.self\.layer_norm_[qk]\.",
    "a JinaBERT that normalises queries and keys (jina-bert-v2-qk-post-norm, as "
    "jina-embeddings-v2-base-code), which is not supported: take a JinaBERT without these norms, "
    "as jina-embeddings-v2-base-en",
)
"""Pattern of the keys of JinaBERT's norms of queries and keys, and the reason of the refusal."""


class RobertaConfig(SharedKeys):
    """Keys of RoBERTa's `config.json` (Liu et al. 2019, https://arxiv.org/abs/1907.11692).

    XLM-RoBERTa (Conneau et al. 2020, https://arxiv.org/abs/1911.02116) and CamemBERT (Martin et al.
    2020, https://arxiv.org/abs/1911.03894) only differ in their vocabularies.
    """

    pad_token_id: int = Field(ge=0, default=1)

    def _layouts(self) -> dict[str, Any]:
        """Return the layout of a position table that starts after the padding id, as in fairseq."""
        return {
            "max_position_embeddings": self.max_position_embeddings - self.pad_token_id - 1,
            "embeddings": EmbeddingLayout(positions="table_after_padding"),
        }


class MPNetConfig(RobertaConfig):
    """Keys of MPNet's `config.json` (Song et al. 2020, https://arxiv.org/abs/2004.09297).

    Each head has a bias of distances. Positions start after id 1, whatever the padding token.
    """

    _fixed: ClassVar[Mapping[str, Any]] = {"pad_token_id": 1, "type_vocab_size": 0}

    relative_attention_num_buckets: Literal[32] = 32

    def _layouts(self) -> dict[str, Any]:
        buckets = LogBuckets(kind="t5", count=32, max_distance=128)
        return super()._layouts() | {"attention": AttentionLayout(bias_buckets=buckets)}


class ElectraConfig(SharedKeys):
    """Keys of ELECTRA's `config.json`: BERT with smaller embeddings.

    Clark et al. 2020, https://arxiv.org/abs/2003.10555.
    """

    embedding_size: Count = 128

    def _layouts(self) -> dict[str, Any]:
        smaller = self.embedding_size != self.hidden_size
        layout = EmbeddingLayout(
            size=self.embedding_size, projection="after_norm" if smaller else "none"
        )
        return {"embeddings": layout}


class AlbertConfig(SharedKeys):
    """Keys of ALBERT's `config.json`: BERT with shared layers.

    Lan et al. 2020, https://arxiv.org/abs/1909.11942.
    """

    hidden_act: ActivationName = "gelu_new"
    embedding_size: Count = 128
    num_hidden_groups: Count = 1
    inner_group_num: Literal[1] = 1

    def _layouts(self) -> dict[str, Any]:
        return {
            "embeddings": EmbeddingLayout(size=self.embedding_size, projection="after_norm"),
            "layer": LayerLayout(groups=self.num_hidden_groups),
        }


class DistilBertConfig(SharedKeys):
    """Keys of DistilBERT's `config.json` (Sanh et al. 2019, https://arxiv.org/abs/1910.01108)."""

    _fixed: ClassVar[Mapping[str, Any]] = {"type_vocab_size": 0, "layer_norm_eps": 1e-12}

    vocab_size: Count = 30522
    hidden_size: Count = Field(768, alias="dim")
    num_hidden_layers: Count = Field(6, alias="n_layers")
    num_attention_heads: Count = Field(12, alias="n_heads")
    intermediate_size: Count = Field(3072, alias="hidden_dim")
    hidden_act: ActivationName = Field("gelu", alias="activation")


class DebertaV2Config(SharedKeys):
    """Keys of the `config.json` of DeBERTa, versions 2 and 3.

    He et al. 2021, https://arxiv.org/abs/2006.03654 and 2111.09543.
    """

    type_vocab_size: int = Field(ge=0, default=0)
    layer_norm_eps: float = Field(gt=0, default=1e-7)
    embedding_size: Count | None = None
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
            "max_position_embeddings": self.longest,
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


FAMILIES = {
    "albert": Family(AlbertConfig.read, "albert."),
    "bert": Family(BertConfig.read, "bert.", refused=(_JINA_NORMS,)),
    "deberta-v2": Family(DebertaV2Config.read, "deberta."),
    "distilbert": Family(DistilBertConfig.read, "distilbert."),
    "electra": Family(ElectraConfig.read, "electra."),
    "mpnet": Family(MPNetConfig.read, "mpnet."),
    **dict.fromkeys(
        ("camembert", "roberta", "xlm-roberta"), Family(RobertaConfig.read, "roberta.")
    ),
}
