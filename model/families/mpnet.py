"""MPNet (Song et al. 2020, https://arxiv.org/abs/2004.09297): a distance bias for each head."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from model.config.encoder import AttentionLayout, LogBuckets
from model.families.bert import OUTSIDE, RENAMES
from model.families.family import Family
from model.families.keys import SharedKeys
from model.families.roberta import after_padding

_PADDING_ID = 1
"""Padding id for positions, independent of the config's padding token."""
_BUCKETS = LogBuckets(kind="t5", count=32, max_distance=128)


class MPNetConfig(SharedKeys):
    """MPNet's keys of `config.json`, with transformers' defaults."""

    _fixed: ClassVar[Mapping[str, Any]] = {"pad_token_id": _PADDING_ID, "type_vocab_size": 0}

    model_type: Literal["mpnet"]
    relative_attention_num_buckets: Literal[32] = 32
    type_vocab_size: int = 0

    def _layouts(self) -> dict[str, Any]:
        return after_padding(self) | {"attention": AttentionLayout(bias_buckets=_BUCKETS)}


_ATTENTION = r"^encoder\.layer\.(\d+)\.attention\."
MPNET = Family(
    config=MPNetConfig.read,
    prefix="mpnet.",
    outside=re.compile(OUTSIDE),
    renames=(
        (r"^encoder\.relative_attention_bias\.", "relative.bias."),
        (_ATTENTION + r"attn\.score\.", r"layers.\1.attention.score_parameters."),
        (_ATTENTION + r"attn\.q\.", r"layers.\1.attention.query."),
        (_ATTENTION + r"attn\.k\.", r"layers.\1.attention.key."),
        (_ATTENTION + r"attn\.v\.", r"layers.\1.attention.value."),
        (_ATTENTION + r"attn\.o\.", r"layers.\1.attention.output."),
        (_ATTENTION + r"LayerNorm\.", r"layers.\1.attention_norm."),
        *RENAMES,
    ),
)
