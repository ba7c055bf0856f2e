"""BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805), and parts of its descendants."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from model.config.encoder import AttentionLayout, EmbeddingLayout, LayerLayout
from model.families.family import Family, split_together
from model.families.keys import SharedKeys
from model.families.rotary import LONGEST


class BertConfig(SharedKeys):
    """Keys of BERT's `config.json`, and of JinaBERT's, which has the same `model_type`.

    Günther et al. 2023, https://arxiv.org/abs/2310.19923.
    """

    model_type: Literal["bert"]
    type_vocab_size: int = Field(gt=0, default=2)
    position_embedding_type: Literal["absolute", "alibi"] = "absolute"  # type: ignore[assignment]
    feed_forward_type: Literal["original", "geglu", "reglu"] = "original"

    def _layouts(self) -> dict[str, Any]:
        layouts: dict[str, Any] = {}
        if self.position_embedding_type == "alibi":
            layouts |= {
                "attention": AttentionLayout(alibi=True),
                "embeddings": EmbeddingLayout(positions="none"),
                "max_position_embeddings": min(self.max_position_embeddings, LONGEST),
            }
        if self.feed_forward_type != "original":
            layouts |= {
                "hidden_act": "gelu" if self.feed_forward_type == "geglu" else "relu",
                "layer": LayerLayout(
                    gated=True, feed_forward_bias=False, feed_forward_output_bias=True
                ),
            }
        return layouts


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
_JINA_RENAMES = (
    (r"^encoder\.layer\.(\d+)\.mlp\.gated_layers\.", r"layers.\1.feed_forward.together."),
    (r"^encoder\.layer\.(\d+)\.mlp\.wo\.", r"layers.\1.feed_forward.contract."),
    (r"^encoder\.layer\.(\d+)\.mlp\.layernorm\.", r"layers.\1.output_norm."),
)
"""Keys of JinaBERT's gated feed-forward → the encoder's."""
_JINA_NORMS = (
    r"\.attention\.self\.layer_norm_[qk]\.",
    "a JinaBERT that normalises queries and keys (jina-bert-v2-qk-post-norm, as "
    "jina-embeddings-v2-base-code), which is not supported: take a JinaBERT without these norms, "
    "as jina-embeddings-v2-base-en",
)
"""Pattern of the keys of JinaBERT's norms of queries and keys, and the reason of the refusal."""

BERT = Family(
    config=BertConfig.read,
    prefix="bert.",
    outside=re.compile(OUTSIDE),
    renames=(*RENAMES, *_JINA_RENAMES),
    refused=(_JINA_NORMS,),
    convert=split_together,
)
