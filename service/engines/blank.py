"""Texts and pictures without content, for probes and measurements."""

from __future__ import annotations

import numpy as np

from model.config.encoder import EncoderConfig
from service.engines.contract import Pooling, TextTask


def blank_text(config: EncoderConfig, tokens: int, pooling: Pooling) -> TextTask:
    """Return a text of token 0, or black patches of a picture, for its pooled vector.

    Args:
        config: configuration of the encoder.
        tokens: number of tokens, at most the encoder's positions.
        pooling: pooled hidden state.

    """
    ids, features = np.zeros(tokens, np.int64), config.pixel_features
    pixels = np.zeros((tokens, features), np.float32) if features else None
    return TextTask(ids, ids, pooling=pooling, pixels=pixels)
