"""mBART (Liu et al. 2020, https://arxiv.org/abs/2001.08210): BART with norms before each part."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from model.config.decoder import DecoderConfig
from model.config.encoder import EmbeddingLayout, EncoderConfig, LayerLayout
from model.families.bart import (
    DECODER_RENAMES,
    OUTSIDE,
    PRE_NORM,
    RENAMES,
    TIED_WORDS,
    BartKeys,
    without_first_rows,
)
from model.families.family import Family

_LAYER = LayerLayout(order="pre_norm")


class MBartConfig(BartKeys):
    """Keys of mBART's `config.json`. The decoder reads a target's last token before the target."""

    model_type: Literal["mbart"]


def read_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """Return the encoder of an mBART checkpoint."""
    config = MBartConfig.model_validate(fields)
    return config.encoder(_LAYER, EmbeddingLayout(scale=config.embedding_scale))


def read_decoder(fields: Mapping[str, Any]) -> DecoderConfig | None:
    """Return the decoder of an mBART checkpoint."""
    config = MBartConfig.model_validate({**fields, "decoder_start_token_id": None})
    return config.decoder(_LAYER, EmbeddingLayout(scale=config.embedding_scale))


MBART = Family(
    config=read_config,
    prefix="model.",
    outside=re.compile(OUTSIDE),
    renames=(*RENAMES, *PRE_NORM),
    convert=without_first_rows,
    tied_words=TIED_WORDS,
    decoder=read_decoder,
    decoder_renames=DECODER_RENAMES,
)
