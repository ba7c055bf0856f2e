"""Marian (Junczys-Dowmunt et al. 2018, https://arxiv.org/abs/1804.00344), as in OPUS-MT.

The architecture is BART with sinusoidal positions, without a norm of the embeddings, and optionally
with a separate vocabulary for the target.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from model.config.encoder import EmbeddingLayout
from model.families.bart import DECODER_RENAMES, OUTSIDE, POST_NORM, RENAMES, TIED_WORDS, BartKeys
from model.families.family import Family
from model.families.keys import PaddingId
from model.families.rotary import LONGEST


class MarianConfig(BartKeys):
    """Keys of Marian's `config.json`."""

    model_type: Literal["marian"]
    vocab_size: int = Field(gt=0, default=58101)
    decoder_vocab_size: int | None = Field(gt=0, default=None)
    share_encoder_decoder_embeddings: bool = True
    max_position_embeddings: int = Field(gt=0, le=LONGEST, default=1024)
    pad_token_id: PaddingId = 58100
    decoder_start_token_id: int = Field(ge=0, default=58100)

    @property
    def embeddings(self) -> EmbeddingLayout:
        """Layout of the embeddings of encoder and decoder."""
        return EmbeddingLayout(norm=False, scale=self.embedding_scale)

    @property
    def target_words(self) -> int:
        """Number of words in the decoder's vocabulary."""
        if self.share_encoder_decoder_embeddings:
            return self.vocab_size
        return self.decoder_vocab_size or self.vocab_size


MARIAN = Family(
    config=MarianConfig.read,
    prefix="model.",
    outside=re.compile(OUTSIDE),
    renames=(*RENAMES, *POST_NORM),
    tied_words=TIED_WORDS,
    sinusoids="marian",
    decoder=MarianConfig.read_decoder,
    decoder_renames=DECODER_RENAMES,
)
