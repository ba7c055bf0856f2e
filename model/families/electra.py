"""ELECTRA (Clark et al. 2020, https://arxiv.org/abs/2003.10555): BERT with smaller embeddings."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from model.config.encoder import EmbeddingLayout
from model.families.bert import OUTSIDE, RENAMES
from model.families.family import Family
from model.families.keys import SharedKeys


class ElectraConfig(SharedKeys):
    """ELECTRA's keys of `config.json`, with transformers' defaults."""

    model_type: Literal["electra"]
    embedding_size: int = Field(gt=0, default=128)

    def _layouts(self) -> dict[str, Any]:
        smaller = self.embedding_size != self.hidden_size
        layout = EmbeddingLayout(
            size=self.embedding_size, projection="after_norm" if smaller else "none"
        )
        return {"embeddings": layout}


ELECTRA = Family(
    config=ElectraConfig.read,
    prefix="electra.",
    outside=re.compile(
        OUTSIDE + r"|^(discriminator_predictions|generator_predictions|generator_lm_head)\."
        r"|^sequence_summary\."
    ),
    renames=(*RENAMES, (r"^embeddings_project\.", "embeddings.projection.")),
)
