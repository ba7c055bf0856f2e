"""M2M-100 (Fan et al. 2020, https://arxiv.org/abs/2010.11125), and NLLB with its architecture.

The architecture is mBART with sinusoidal positions, which start after the padding token's id.
"""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field

from model.config.encoder import ActivationName, EmbeddingLayout, LayerLayout
from model.families.bart import DECODER_RENAMES, OUTSIDE, PRE_NORM, RENAMES, TIED_WORDS, BartKeys
from model.families.family import Family
from model.families.rotary import LONGEST


class M2M100Config(BartKeys):
    """Keys of M2M-100's `config.json`."""

    layer: ClassVar[LayerLayout] = LayerLayout(order="pre_norm")
    output_bias: ClassVar[bool] = False

    model_type: Literal["m2m_100"]
    vocab_size: int = Field(gt=0, default=128112)
    d_model: int = Field(gt=4, default=1024)
    activation_function: ActivationName = "relu"
    max_position_embeddings: int = Field(gt=0, le=LONGEST, default=1024)
    scale_embedding: bool = True
    pad_token_id: int = Field(ge=0, default=1)
    decoder_start_token_id: int = Field(ge=0, default=2)

    @property
    def embeddings(self) -> EmbeddingLayout:
        """Layout of the embeddings of encoder and decoder."""
        return EmbeddingLayout(
            positions="table_after_padding", norm=False, scale=self.embedding_scale
        )


M2M_100 = Family(
    config=M2M100Config.read,
    prefix="model.",
    outside=re.compile(OUTSIDE),
    renames=(*RENAMES, *PRE_NORM),
    tied_words=TIED_WORDS,
    sinusoids="m2m_100",
    decoder=M2M100Config.read_decoder,
    decoder_renames=DECODER_RENAMES,
)
