"""First hidden state: embeddings of words, patches, positions and segments.

Relative positions of all layers are here as well: learned biases and embeddings of distances.

Notation: T tokens of all texts, E size of an embedding, H hidden size, F pixel values of a patch, L
layers, N heads, M tokens of the longest text, R relative positions of one direction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from model.attention.positions import alibi_table, bucket_table
from model.config.encoder import EncoderConfig
from model.low_rank import LowRankTable
from model.norms import norm_of
from model.packing import PackedBatch


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


class Embeddings(nn.Module):
    """Sum of word, patch, segment and position embeddings, normalised if the config says so."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        layout, h = config.embeddings, config.hidden_size
        size = layout.size or h
        self.layout = layout
        self.padding_id = config.pad_token_id
        self.reads_segments = config.reads_segments
        self.word = nn.Embedding(config.vocab_size, size)
        self.position = self.token_type = self.layer_norm = self.projection = None
        patches = layout.patches
        self.patch = nn.Linear(patches.features, size, bias=False) if patches else None
        if layout.positions != "none":
            offset = self.padding_id + 1 if layout.positions == "table_after_padding" else 0
            self.position = nn.Embedding(config.max_position_embeddings + offset, size)
        if config.type_vocab_size:
            self.token_type = nn.Embedding(config.type_vocab_size, size)
        self.low_rank = None
        if config.adapters:
            self.low_rank = LowRankTable(config.adapters, config.vocab_size, size)
        if layout.norm:
            self.layer_norm = norm_of(config, h if layout.projection == "before_norm" else size)
        if layout.projection != "none":
            self.projection = nn.Linear(size, h, bias=layout.projection_bias)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Embed `[T]` tokens as `[T, H]`, or `[1, T]` or `[B, S]` with another axis H."""
        hidden = self.word(batch.input_ids)
        if self.low_rank is not None and batch.low_rank is not None:
            hidden = hidden + self.low_rank(batch.input_ids, batch.low_rank)
        if self.patch is not None and batch.pixels is not None:
            hidden = hidden + self.patch(batch.pixels.to(hidden.dtype))
        if self.layout.scale != 1.0:
            hidden = hidden * self.layout.scale
        if self.token_type is not None:
            table = self.token_type
            segments = table(batch.token_type_ids) if self.reads_segments else table.weight[0]
            hidden = hidden + segments
        if self.position is not None:
            hidden = hidden + self.position(self._positions(batch))
        if self.projection is not None and self.layout.projection == "before_norm":
            hidden = self.projection(hidden)
        if self.layer_norm is not None:
            hidden = self.layer_norm(hidden)
        if self.projection is not None and self.layout.projection == "after_norm":
            hidden = self.projection(hidden)
        return hidden

    def _positions(self, batch: PackedBatch) -> Tensor:
        """Return rows of the position table, in the shape of `batch.position_ids`.

        With `table_after_padding` they count as in fairseq: the n-th token of a text that is not a
        padding token has row padding id + n; any padding token has the padding id as its row.
        """
        if self.layout.positions == "table":
            return batch.position_ids
        ids = batch.grid_ids()  # [B, S]
        real = (ids != self.padding_id).long()  # rows at padded positions are never used
        rows = real.cumsum(dim=1) * real + self.padding_id
        return batch.pack(rows).reshape(batch.input_ids.shape)
