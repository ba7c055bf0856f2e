"""Relative positions of all layers: learned biases and embeddings of distances.

Notation: L layers, N heads, M tokens of the longest text, R relative positions of one direction,
H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from model.attention.positions import alibi_table, bucket_table
from model.config.encoder import EncoderConfig
from model.norms import norm_of


class RelativePositions(nn.Module):
    """Parameters of relative positions; none if the encoder has no relative positions."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        layout = config.attention
        self._layers = config.num_hidden_layers
        self._buckets = None
        self._by_layer = layout.bias_by_layer
        if layout.bias_buckets is not None:
            sizes = layout.bias_buckets.count, config.num_attention_heads
            if self._by_layer:
                self.biases = nn.ModuleList(nn.Embedding(*sizes) for _ in range(self._layers))
            else:
                self.bias = nn.Embedding(*sizes)
            self._buckets = bucket_table(layout.bias_buckets, config.max_position_embeddings)
        # not a parameter, so that neither the default device nor the precision changes it
        self._alibi = None
        if layout.alibi:
            self._alibi = alibi_table(config.num_attention_heads, config.max_position_embeddings)
        self._embedded = layout.position_buckets is not None
        if layout.position_buckets is not None:
            self.embeddings = nn.Embedding(2 * layout.position_buckets.count, config.hidden_size)
            self.norm = norm_of(config) if layout.position_norm else nn.Identity()

    def forward(self) -> list[dict[str, Tensor]]:
        """Return the tensors of each of L layers, which are the same objects where they are shared.

        They are `distance_bias` `[N, 2M − 1]` and `position_states` `[2R, H]`, if they exist.
        """
        shared = {}
        if self._embedded:
            shared["position_states"] = self.norm(self.embeddings.weight)
        if self._alibi is not None:
            shared["distance_bias"] = self._alibi
        if self._buckets is None:
            return [shared] * self._layers
        biases = cast(Iterable[nn.Embedding], self.biases) if self._by_layer else [self.bias]
        layers = [
            {**shared, "distance_bias": torch.index_select(bias.weight.T, 1, self._buckets)}
            for bias in biases
        ]
        return layers if self._by_layer else layers * self._layers
