"""Decoder in eager PyTorch, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from model.artifact.signature import MapKind
from model.attention.values import value_products
from model.attention.weights import AttentionRule, Heads, attention_weights, some_heads
from model.decoder.decoder import Decoder
from model.numerics.batch import Ids
from model.packing import PackedBatch
from model.runtimes import capabilities
from model.runtimes.contract import LOGITS, Decoding, Floats
from model.runtimes.heads import in_parts
from model.runtimes.host import cut


class TorchDecoder(capabilities.Decoder):
    """Decoder of a runtime in float32."""

    def __init__(self, decoder: Decoder) -> None:
        self.config = decoder.config
        self._decoder = decoder
        self._heads = decoder.config.layers.num_attention_heads
        self._rows = max(1, LOGITS // decoder.config.layers.vocab_size)
        with torch.inference_mode():
            self._relative = decoder.relative_parameters()
            self._parameters: dict[MapKind, list[dict[str, Tensor]]] = {
                "decoder": decoder.head_parameters(),
                "cross": decoder.cross_head_parameters(),
            }

    def decode(self, asked: Decoding) -> tuple[list[Floats], list[Floats]]:
        """Return `[T, H]` per state, and per layer's query states."""
        masks = (asked.head_mask, asked.cross_head_mask)
        with torch.inference_mode():
            output = self._decoder(
                PackedBatch.of(asked.target),
                PackedBatch.of(asked.source),
                torch.from_numpy(asked.encoded),
                *(None if mask is None else torch.from_numpy(mask) for mask in masks),
                relative=self._relative,
            )
        states, cross = (
            {layer: rows.numpy() for layer, rows in enumerate(by_layer)}
            for by_layer in (output.hidden_states, output.cross_queries)
        )
        return cut(states, asked.target, asked.states), cut(cross, asked.target, asked.cross)

    def attention_of(
        self, kind: MapKind, queries: Floats, keys: Floats, layer: int, heads: Sequence[int]
    ) -> Floats:
        """Return maps `[heads, T, S]`."""
        with torch.inference_mode():
            parameters = some_heads(self._parameters[kind][layer], heads, self._heads)
        return maps_of(parameters, self._rule(kind), queries, keys)

    def value_products_of(
        self, kind: MapKind, states: Floats, layer: int, heads: Sequence[int]
    ) -> Floats:
        """Return value products `[S, heads, heads]`."""
        own, cross = self._decoder.layer(layer).own, self._decoder.layer(layer).cross
        all_heads = own.value_parameters() if kind == "decoder" else cross.value_parameters()
        return products_of(some_heads(all_heads, heads, self._heads), self._rule(kind), states)

    def logprobs(self, rows: Floats, labels: Ids) -> Floats:
        """Return log-probabilities `[n]`, computed in blocks of rows."""
        pairs = (torch.split(torch.from_numpy(array), self._rows) for array in (rows, labels))
        with torch.inference_mode():
            parts = [self._decoder.logprobs(*pair).numpy() for pair in zip(*pairs, strict=True)]
        return np.concatenate(parts)

    def _rule(self, kind: MapKind) -> AttentionRule:
        return self._decoder.rule if kind == "decoder" else self._decoder.cross_rule


def maps_of(
    parameters: Mapping[str, Tensor], rule: AttentionRule, queries: Floats, keys: Floats
) -> Floats:
    """Return maps `[n, T, S]` of heads with these parameters, for states `[T, H]` and `[S, H]`."""
    states = (torch.from_numpy(array)[None] for array in (queries, keys))
    with torch.inference_mode():
        maps: Floats = attention_weights(Heads.from_parameters(parameters, rule), *states)[
            0
        ].numpy()
    return maps


def products_of(parameters: Mapping[str, Tensor], rule: AttentionRule, states: Floats) -> Floats:
    """Return value products `[S, n, n]` of heads with these parameters, for states `[S, H]`."""

    def of_block(rows: Floats) -> Floats:
        products: Floats = value_products(parameters, rule, torch.from_numpy(rows)).numpy()
        return products

    with torch.inference_mode():
        return in_parts(states, len(parameters["output_weight"]), of_block)
