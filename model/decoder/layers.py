"""Layer of a decoder: self-attention, cross-attention and feed-forward.

Notation: B texts, T and S tokens of the longest target and source, T_all and S_all tokens of all
targets and sources, H hidden size, N heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from model.attention.long_texts import attend_in_chunks, query_chunks
from model.attention.multi_head import AttentionProjections, AttentionSizes, ablated, merge_heads
from model.attention.self_attention import Relative
from model.attention.weights import AttentionRule, Heads, attention_weights
from model.config.decoder import DecoderConfig
from model.encoder.layers import Layer
from model.norms import norm_of
from model.packing import PackedBatch


def cross_rule(config: DecoderConfig) -> AttentionRule:
    """Return the rule of all cross-attention heads: every source position is allowed."""
    layers = config.layers
    return AttentionRule(
        layers.attention_score,
        layers.attention_normalizer,
        query_scale=layers.attention.query_scale,
    )


class CrossAttention(AttentionProjections):
    """Cross-attention from the decoder's states to the encoder's last hidden state."""

    def __init__(self, config: DecoderConfig, rule: AttentionRule) -> None:
        layers, bias = config.layers, config.cross_bias
        h, p = layers.hidden_size, layers.head_size
        sizes = AttentionSizes(layers.num_attention_heads, h, h, h, p, p, p, h)
        super().__init__(sizes, rule.score, bias=bias, output_bias=bias)
        self.rule = rule
        self._chunks = query_chunks(layers)

    def attend(
        self,
        queries: Tensor,
        target: PackedBatch,
        encoded: Tensor,
        source: PackedBatch,
        head_mask: Tensor | None,
    ) -> Tensor:
        """Attend from the targets' query states `[T_all, H]` over their sources → `[T_all, H]`.

        `target` and `source` have the positions of the tokens in the grids `[B, T]` and `[B, S]`;
        `encoded` is the encoder's last hidden state of the sources, `[S_all, H]`. `head_mask` `[B,
        N]` multiplies each head's output before the output projection.
        """
        heads = self._heads(target, source)
        query, key = heads.projected(queries, encoded)
        value = self.value_heads(source.pad(self.value(encoded)))
        context = attend_in_chunks(heads, query, key, value, source.mask, self._chunks)
        return self.output(target.pack(merge_heads(ablated(context, head_mask))))

    def maps(
        self, queries: Tensor, target: PackedBatch, encoded: Tensor, source: PackedBatch
    ) -> Tensor:
        """Return the weights `[B, N, T, S]`; arguments as for `attend`."""
        return attention_weights(self._heads(target, source), queries, encoded, source.mask)

    def _heads(self, target: PackedBatch, source: PackedBatch) -> Heads:
        """Return all N heads, which project packed targets and sources into their grids."""
        return Heads(
            self.num_heads,
            lambda x: target.pad(self.query(x)),
            lambda x: source.pad(self.key(x)),
            self.rule,
            self.named_score_parameters(),
        )

    def head_parameters(self) -> dict[str, Tensor]:
        """Return the parameters, `[N, …]` each, that the maps depend on beside both states."""
        return self.projection_parameters() | self.named_score_parameters()


Read = Callable[[Tensor], Tensor]
"""Cross-attention as a function of query states, `[T_all, H]` → `[T_all, H]`."""


class LayerOutput(NamedTuple):
    """Result of a layer, `[T_all, H]` each."""

    hidden: Tensor
    cross_queries: Tensor
    """Input of cross-attention's query projection."""


class DecoderLayer(nn.Module):
    """Layer of a decoder; its self-attention and feed-forward are an encoder's layer.

    Cross-attention is a part between the two, with a norm of its own in the same order.
    """

    def __init__(
        self, config: DecoderConfig, number: int, rule: AttentionRule, cross: AttentionRule
    ) -> None:
        super().__init__()
        self.cross = CrossAttention(config, cross)
        self.cross_norm = norm_of(config.layers)
        self.own = Layer(config.layers, number, rule)

    def forward(
        self,
        hidden: Tensor,
        target: PackedBatch,
        head_mask: Tensor | None,
        relative: Relative,
        read: Read,
    ) -> LayerOutput:
        """Map `[T_all, H]` → `[T_all, H]`.

        `target`, `head_mask` and `relative` are as for `SelfAttention.attend`; `read` is the
        cross-attention, over the sources of the batch.
        """
        own, queries = self.own, self.own.attended(hidden, target, head_mask, relative)
        if own.post_norm:
            hidden = self.cross_norm(queries + read(queries))
        else:
            hidden, queries = queries, self.cross_norm(queries)
            hidden = hidden + read(queries)
        return LayerOutput(own.fed(hidden), queries)
