"""Minimum cost of a forward pass, in floating-point operations.

Notation: S tokens of one text, H hidden size, I intermediate size, L layers.

    linear maps   2 · L · (4·H² + 2·H·I) a token: two operations a parameter
    attention     4 · L · S · H a token: queries by keys, then weights by values

Embeddings, norms, softmax, activations and padding are left out: only the texts' own tokens count.
"""

from __future__ import annotations

from collections.abc import Sequence

from model.config.encoder import EncoderConfig


def flop(config: EncoderConfig, lengths: Sequence[int]) -> float:
    """Return the FLOP of texts with the given numbers of tokens."""
    h, i, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    linear = 2.0 * layers * (4 * h * h + 2 * h * i)
    attention = 4.0 * layers * h
    return sum(s * (linear + attention * s) for s in lengths)
