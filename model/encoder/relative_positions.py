"""Relative positions that all layers share: learned biases and embeddings of distances.

Notation: N heads, M tokens of the longest text, R relative positions of one direction, H hidden
size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.attention.positions import bucket_table
from model.config.encoder import EncoderConfig
from model.norms import norm_of


class RelativePositions(nn.Module):
    """Parameters of relative positions; none if the encoder has no relative positions."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        layout = config.attention
        self._buckets = None
        if layout.bias_buckets is not None:
            self.bias = nn.Embedding(layout.bias_buckets.count, config.num_attention_heads)
            self._buckets = bucket_table(layout.bias_buckets, config.max_position_embeddings)
        self._embedded = layout.position_buckets is not None
        if layout.position_buckets is not None:
            self.embeddings = nn.Embedding(2 * layout.position_buckets.count, config.hidden_size)
            self.norm = norm_of(config) if layout.position_norm else nn.Identity()

    def forward(self) -> dict[str, Tensor]:
        """Return `distance_bias` `[N, 2M − 1]` and `position_states` `[2R, H]`, if they exist."""
        shared = {}
        if self._buckets is not None:
            shared["distance_bias"] = torch.index_select(self.bias.weight.T, 1, self._buckets)
        if self._embedded:
            shared["position_states"] = self.norm(self.embeddings.weight)
        return shared
