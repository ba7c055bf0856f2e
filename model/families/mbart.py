"""mBART (Liu et al. 2020, https://arxiv.org/abs/2001.08210): BART with norms before each part."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from model.config.decoder import DecoderConfig
from model.config.encoder import LayerLayout
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


class MBartConfig(BartKeys):
    """Keys of mBART's `config.json`. The decoder reads a target's last token before the target."""

    layer: ClassVar[LayerLayout] = LayerLayout(order="pre_norm")

    model_type: Literal["mbart"]

    @classmethod
    def read_decoder(cls, fields: Mapping[str, Any]) -> DecoderConfig | None:
        """Return the decoder of a checkpoint."""
        return super().read_decoder({**fields, "decoder_start_token_id": None})


MBART = Family(
    config=MBartConfig.read,
    prefix="model.",
    outside=re.compile(OUTSIDE),
    renames=(*RENAMES, *PRE_NORM),
    convert=without_first_rows,
    tied_words=TIED_WORDS,
    decoder=MBartConfig.read_decoder,
    decoder_renames=DECODER_RENAMES,
)
