"""jina-embeddings-v3 (Sturua et al. 2024, https://arxiv.org/abs/2409.10173).

XLM-RoBERTa with rotary positions and an adapter for each task. Checkpoints have two layouts:
transformers' own, and the published one, whose `model_type` is `xlm-roberta`. See
`model.families.jina_tasks`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from model.config.encoder import AdapterLayout, AttentionLayout
from model.families.bert import OUTSIDE
from model.families.family import Family, split_together
from model.families.jina_tasks import JINA_V3
from model.families.keys import LLAMA_RENAMES, PaddingId, SharedKeys
from model.families.rotary import LONGEST, rotary, rotary_layout

if TYPE_CHECKING:
    from torch import Tensor

_BASES = {JINA_V3: 20000.0, "xlm-roberta": 10000.0}
"""`model_type` → default base of rotary positions."""


class JinaEmbeddingsV3Config(SharedKeys):
    """jina-embeddings-v3's keys of `config.json`, with the defaults of transformers."""

    model_type: Literal["jina_embeddings_v3", "xlm-roberta"]
    vocab_size: int = Field(gt=0, default=250002)
    hidden_size: int = Field(gt=0, default=1024)
    num_hidden_layers: int = Field(gt=0, default=24)
    num_attention_heads: int = Field(gt=0, default=16)
    intermediate_size: int = Field(gt=0, default=4096)
    max_position_embeddings: int = Field(gt=0, default=8194)
    type_vocab_size: Literal[1] = 1
    layer_norm_eps: float = Field(gt=0, default=1e-5)
    pad_token_id: PaddingId = 1
    position_embedding_type: Literal["rotary"] = "rotary"  # type: ignore[assignment]
    rotary_emb_interleaved: Literal[False] = False
    rotary_emb_scale_base: None = None
    rotary_scaling_factor: None = None
    lora_adaptations: list[str] | None = None
    lora_rank: int = Field(gt=0, default=4)

    def _layouts(self) -> dict[str, Any]:
        positions = rotary(self._fields, "rotary_emb_base", _BASES[self.model_type])
        layouts: dict[str, Any] = {
            "model_type": JINA_V3,
            "max_position_embeddings": min(self.max_position_embeddings, LONGEST),
            "attention": AttentionLayout(**rotary_layout([positions] * self.num_hidden_layers)),
            "embeddings": {"positions": "none"},
        }
        if tasks := self.lora_adaptations:
            layouts["adapters"] = AdapterLayout(count=len(tasks), rank=self.lora_rank)
            layouts["type_vocab_size"] = len(tasks) + 1
        return layouts


def split_maps(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Split a tensor that holds several maps; low-rank matrices stay as they are."""
    return {name: tensor} if ".lora_" in name else split_together(name, tensor)


JINA_EMBEDDINGS_V3 = Family(
    config=JinaEmbeddingsV3Config.read,
    prefix="roberta.",
    outside=re.compile(OUTSIDE + r"|inv_freq$"),
    renames=(
        (r"\.parametrizations\.weight\.original$", ".weight"),
        (r"\.parametrizations\.weight\.0\.lora_", ".lora_"),
        (r"^emb_ln\.", "embeddings.layer_norm."),
        (r"^embeddings\.(word|token_type)_embeddings\.", r"embeddings.\1."),
        (r"^embeddings\.LayerNorm\.", "embeddings.layer_norm."),
        (r"^encoder\.layers\.", "layers."),
        *LLAMA_RENAMES,
        (r"\.mixer\.Wqkv\.", ".attention.together."),
        (r"\.mixer\.out_proj\.", ".attention.output."),
        (r"\.mlp\.fc1\.", ".feed_forward.expand."),
        (r"\.mlp\.fc2\.", ".feed_forward.contract."),
        (r"\.(post_attention_layernorm|norm1)\.", ".attention_norm."),
        (r"\.(post_mlp_layernorm|norm2)\.", ".output_norm."),
    ),
    convert=split_maps,
)
