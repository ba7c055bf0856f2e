"""Cross-attention of packed texts: each target over its source.

Notation: B texts, T and S tokens of the longest target and source, H hidden size, N heads.
"""

from __future__ import annotations

from torch import Tensor

from model.attention.long_texts import attend_in_chunks, query_chunks
from model.attention.multi_head import AttentionProjections, AttentionSizes, ablated, merge_heads
from model.attention.weights import AttentionRule, Heads, attention_weights
from model.config.decoder import DecoderConfig
from model.packing import PackedBatch


def cross_rule(config: DecoderConfig) -> AttentionRule:
    """The rule of all heads of cross-attention: every position of the source may be looked at."""
    layers = config.layers
    return AttentionRule(
        layers.attention_score,
        layers.attention_normalizer,
        query_scale=layers.attention.query_scale,
    )


class CrossAttention(AttentionProjections):
    """Queries from the decoder's state, keys and values from the encoder's last hidden state."""

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
        """What the targets read of their sources.

        Args:
            queries: query states of the targets' tokens, `[T_all, H]`.
            target: their places in the grid `[B, T]`.
            encoded: the encoder's last hidden state of the sources' tokens, `[S_all, H]`.
            source: their places in the grid `[B, S]`.
            head_mask: `[B, N]`; multiplies each head's output before the output projection.

        Returns:
            `[T_all, H]`.

        """
        heads = self._heads(target, source)
        query, key = heads.projected(queries, encoded)
        value = self.value_heads(source.pad(self.value(encoded)))
        context = attend_in_chunks(heads, query, key, value, source.mask, self._chunks)
        return self.output(target.pack(merge_heads(ablated(context, head_mask))))

    def maps(
        self, queries: Tensor, target: PackedBatch, encoded: Tensor, source: PackedBatch
    ) -> Tensor:
        """The weights `[B, N, T, S]`, of the same arguments."""
        return attention_weights(self._heads(target, source), queries, encoded, source.mask)

    def _heads(self, target: PackedBatch, source: PackedBatch) -> Heads:
        """All N heads, which project packed targets and sources into their grids."""
        return Heads(
            self.num_heads,
            lambda x: target.pad(self.query(x)),
            lambda x: source.pad(self.key(x)),
            self.rule,
            self.named_score_parameters(),
        )

    def head_parameters(self) -> dict[str, Tensor]:
        """All that the maps of the N heads follow from, beside both states: `[N, …]` each."""
        parameters = {
            f"{role}_{name}": tensor.reshape(self.num_heads, -1, *tensor.shape[1:])
            for role, projection in (("query", self.query), ("key", self.key))
            for name, tensor in projection.named_parameters()
        }
        return parameters | self.named_score_parameters()
