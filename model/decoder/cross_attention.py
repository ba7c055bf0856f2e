"""Cross-attention of packed texts, from each target to its source.

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
        """Attend from the targets' tokens over their sources.

        Args:
            queries: query states of the targets' tokens, `[T_all, H]`.
            target: positions of these tokens in the grid `[B, T]`.
            encoded: the encoder's last hidden state of the sources' tokens, `[S_all, H]`.
            source: positions of these tokens in the grid `[B, S]`.
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
        parameters = {
            f"{role}_{name}": tensor.reshape(self.num_heads, -1, *tensor.shape[1:])
            for role, projection in (("query", self.query), ("key", self.key))
            for name, tensor in projection.named_parameters()
        }
        return parameters | self.named_score_parameters()
