"""A stand-in of the decoder: post-norm layers of self-attention, cross-attention, feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.attention.multi_head import AttentionProjections, AttentionSizes, ablated, merge_heads
from model.attention.self_attention import Relative, attention_rule
from model.attention.weights import AttentionRule, Heads, attention_weights
from model.decoder.config import DecoderConfig
from model.encoder.embeddings import Embeddings
from model.encoder.layers import PostNormLayer
from model.norms import norm_of
from model.packing import PackedBatch


class DecoderOutput(NamedTuple):
    """Result of a forward pass."""

    hidden_states: tuple[Tensor, ...]
    cross_queries: tuple[Tensor, ...]
    attentions: tuple[Tensor, ...]
    cross_attentions: tuple[Tensor, ...]


class CrossAttention(AttentionProjections):
    """Targets over their sources."""

    def __init__(self, config: DecoderConfig, rule: AttentionRule) -> None:
        h, p, n = (
            config.layers.hidden_size,
            config.layers.head_size,
            config.layers.num_attention_heads,
        )
        super().__init__(AttentionSizes(n, h, h, h, p, p, p, h), rule.score, bias=config.cross_bias)
        self.rule = rule

    def attend(
        self,
        hidden: Tensor,
        encoded: Tensor,
        batches: tuple[PackedBatch, PackedBatch],
        mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        target, source = batches
        heads = Heads(
            self.num_heads,
            lambda x: target.pad(self.query(x)),
            lambda x: source.pad(self.key(x)),
            self.rule,
        )
        weights = attention_weights(heads, hidden, encoded, source.mask)
        context = weights @ self.value_heads(source.pad(self.value(encoded)))
        return self.output(target.pack(merge_heads(ablated(context, mask)))), weights


class DecoderLayer(nn.Module):
    """One layer."""

    def __init__(
        self, config: DecoderConfig, number: int, rule: AttentionRule, cross: AttentionRule
    ) -> None:
        super().__init__()
        self.own = PostNormLayer(config.layers, number, rule)
        self.cross = CrossAttention(config, cross)
        self.cross_norm = norm_of(config.layers)


class Decoder(nn.Module):
    """Labels shifted right, over an encoder's last hidden state."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config.layers)
        self.rule = attention_rule(config.layers)
        self.cross_rule = AttentionRule()
        self.layers = nn.ModuleList(
            DecoderLayer(config, number, self.rule, self.cross_rule)
            for number in range(config.layers.num_hidden_layers)
        )
        self.bias = nn.Parameter(torch.zeros(config.layers.vocab_size))

    def forward(
        self,
        target: PackedBatch,
        source: PackedBatch,
        encoded: Tensor,
        head_mask: Tensor | None = None,
        cross_head_mask: Tensor | None = None,
        *,
        output_attentions: bool = False,
        relative: Sequence[Relative] | None = None,
    ) -> DecoderOutput:
        states, queries = [self.embeddings(target)], []
        own_maps, cross_maps = [], []
        for n, each in enumerate(self.layers):
            layer, entering = cast(DecoderLayer, each), states[-1]
            of_layer = None if head_mask is None else head_mask[:, n]
            attended = layer.own.attention.attend(entering, target, of_layer, {})
            hidden = layer.own.attention_norm(entering + attended)
            queries.append(hidden)
            of_layer = None if cross_head_mask is None else cross_head_mask[:, n]
            attended, weights = layer.cross.attend(hidden, encoded, (target, source), of_layer)
            hidden = layer.cross_norm(hidden + attended)
            states.append(layer.own.output_norm(hidden + layer.own.feed_forward(hidden)))
            if output_attentions:
                own_maps.append(layer.own.maps(entering, target, {}))
                cross_maps.append(weights)
        return DecoderOutput(tuple(states), tuple(queries), tuple(own_maps), tuple(cross_maps))

    def logprobs(self, rows: Tensor, labels: Tensor) -> Tensor:
        logits = functional.linear(rows, self.embeddings.word.weight, self.bias)
        chosen = logits.float().log_softmax(dim=-1).gather(1, labels[:, None])
        return chosen[:, 0]

    def head_parameters(self) -> list[dict[str, Tensor]]:
        return [cast(DecoderLayer, layer).own.head_parameters({}) for layer in self.layers]

    def cross_head_parameters(self) -> list[dict[str, Tensor]]:
        n = self.config.layers.num_attention_heads
        return [
            {
                f"{role}_{name}": tensor.reshape(n, -1, *tensor.shape[1:])
                for role in ("query", "key")
                for name, tensor in getattr(
                    cast(DecoderLayer, layer).cross, role
                ).named_parameters()
            }
            for layer in self.layers
        ]

    def relative_parameters(self) -> list[Relative]:
        return [{} for _ in self.layers]
