"""ELECTRA (Clark et al. 2020, https://arxiv.org/abs/2003.10555): BERT with smaller embeddings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from model.config.encoder import EmbeddingLayout, EncoderConfig
from model.families.bert import OUTSIDE, RENAMES
from model.families.family import Family
from model.families.keys import SharedKeys


class ElectraConfig(SharedKeys):
    """ELECTRA's keys of `config.json`, with transformers' defaults."""

    model_type: Literal["electra"]
    embedding_size: int = Field(gt=0, default=128)


def read_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """Return the encoder of an ELECTRA checkpoint."""
    config = ElectraConfig.model_validate(fields)
    smaller = config.embedding_size != config.hidden_size
    layout = EmbeddingLayout(
        size=config.embedding_size, projection="after_norm" if smaller else "none"
    )
    return EncoderConfig.model_validate(config.model_dump() | {"embeddings": layout})


ELECTRA = Family(
    config=read_config,
    prefix="electra.",
    outside=re.compile(
        OUTSIDE + r"|^(discriminator_predictions|generator_predictions|generator_lm_head)\."
        r"|^sequence_summary\."
    ),
    renames=(*RENAMES, (r"^embeddings_project\.", "embeddings.projection.")),
)
