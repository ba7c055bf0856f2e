"""Tensors that a decoder computes for one text's target, for comparisons. Without torch.

Notation: S tokens of a text, T tokens of its target, H hidden size, L_d layers and N heads of the
decoder.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.numerics.comparison import Floats, Key, keyed_maps


def shift_right(labels: NDArray[np.int64], start_token_id: int | None) -> NDArray[np.int64]:
    """Return labels `[T]` shifted right, `[T]`: the start token, then all labels but the last.

    Without a start token the last label comes first, as in mBART.
    """
    shifted = np.roll(labels, 1)
    if start_token_id is not None:
        shifted[:1] = start_token_id
    return shifted


Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TargetTensors:
    """A target's tensors, in float32."""

    hidden: Floats
    """`[L_d + 1, T, H]`."""
    cross_queries: Floats
    """`[L_d, T, H]`."""
    maps: Floats
    """`[L_d, N, T, T]`, attention weights of the decoder's self-attention."""
    cross_maps: Floats
    """`[L_d, N, T, S]`."""
    logprobs: Floats
    """`[T]`."""

    def keyed(self) -> dict[Key, Floats]:
        """Return the tensors by key."""
        states = {Key("decoder_hidden", layer): state for layer, state in enumerate(self.hidden)}
        queries = {Key("cross_queries", n): state for n, state in enumerate(self.cross_queries)}
        return {
            **states,
            **queries,
            **keyed_maps("decoder_attention", self.maps),
            **keyed_maps("cross_attention", self.cross_maps),
            Key("logprobs"): self.logprobs,
        }


def random_labels(decoder: DecoderConfig, tokens: int, seed: int) -> Ids:
    """Return `tokens` random labels of a target, but at most the decoder's positions."""
    config: EncoderConfig = decoder.layers
    length = min(tokens, config.max_position_embeddings)
    return np.random.default_rng(seed).integers(0, config.vocab_size, length)
