"""RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692), and models of its architecture.

XLM-RoBERTa (Conneau et al. 2020, https://arxiv.org/abs/1911.02116) and CamemBERT (Martin et al.
2020, https://arxiv.org/abs/1911.03894) only differ in their vocabularies.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from model.config.encoder import EmbeddingLayout
from model.families.bert import OUTSIDE, RENAMES
from model.families.family import Family
from model.families.keys import SharedKeys


class RobertaConfig(SharedKeys):
    """RoBERTa's keys of `config.json`, with transformers' defaults."""

    model_type: Literal["roberta", "xlm-roberta", "camembert"]
    pad_token_id: int = Field(ge=0, default=1)

    def _layouts(self) -> dict[str, Any]:
        return after_padding(self)


def after_padding(config: SharedKeys) -> dict[str, Any]:
    """Return the layout of a position table that starts after the padding id, as in fairseq."""
    return {
        "max_position_embeddings": config.max_position_embeddings - config.pad_token_id - 1,
        "embeddings": EmbeddingLayout(positions="table_after_padding"),
    }


ROBERTA = Family(
    config=RobertaConfig.read, prefix="roberta.", outside=re.compile(OUTSIDE), renames=RENAMES
)
