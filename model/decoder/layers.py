"""Layer of a decoder: self-attention, cross-attention and feed-forward.

Notation: B texts, T and S tokens of the longest target and source, T_all and S_all tokens of all
targets and sources, H hidden size, N heads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from model.attention.long_texts import attend_in_chunks, query_chunks
from model.attention.multi_head import AttentionProjections, AttentionSizes, ablated, merge_heads
from model.attention.self_attention import Relative
from model.attention.weights import AttentionRule, Heads, attention_weights
from model.config.decoder import DecoderConfig
from model.encoder.layers import Layer, PostNormLayer, PreNormLayer
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


Read = Callable[[Tensor], Tensor]
"""Cross-attention as a function of query states, `[T_all, H]` → `[T_all, H]`."""


class LayerOutput(NamedTuple):
    """Result of a layer, `[T_all, H]` each."""

    hidden: Tensor
    cross_queries: Tensor
    """Input of cross-attention's query projection."""


class DecoderLayer(nn.Module, ABC):
    """Layer of a decoder; its self-attention and feed-forward are an encoder's layer."""

    own_class: ClassVar[type[Layer]]
    own: Layer
    cross_norm: nn.Module

    def __init__(
        self, config: DecoderConfig, number: int, rule: AttentionRule, cross: AttentionRule
    ) -> None:
        """Allocate the parameters."""
        super().__init__()
        self.cross = CrossAttention(config, cross)
        self.cross_norm = norm_of(config.layers)
        self.own = self.own_class(config.layers, number, rule)

    @abstractmethod
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


class PostNormDecoderLayer(DecoderLayer):
    """Layer with norm(x + f(x)) for each of the three parts (Vaswani et al. 2017, section 3.1)."""

    own_class = PostNormLayer
    own: PostNormLayer

    def forward(
        self,
        hidden: Tensor,
        target: PackedBatch,
        head_mask: Tensor | None,
        relative: Relative,
        read: Read,
    ) -> LayerOutput:
        """Map `[T_all, H]` → `[T_all, H]`."""
        attended = self.own.attention.attend(hidden, target, head_mask, relative)
        queries = self.own.attention_norm(hidden + attended)
        hidden = self.cross_norm(queries + read(queries))
        hidden = self.own.output_norm(hidden + self.own.feed_forward(hidden))
        return LayerOutput(hidden, queries)


class PreNormDecoderLayer(DecoderLayer):
    """Layer with x + f(norm(x)) for each of the three parts."""

    own_class = PreNormLayer
    own: PreNormLayer

    def forward(
        self,
        hidden: Tensor,
        target: PackedBatch,
        head_mask: Tensor | None,
        relative: Relative,
        read: Read,
    ) -> LayerOutput:
        """Map `[T_all, H]` → `[T_all, H]`."""
        normed = self.own.attention_norm(hidden)
        hidden = hidden + self.own.attention.attend(normed, target, head_mask, relative)
        queries = self.cross_norm(hidden)
        hidden = hidden + read(queries)
        hidden = hidden + self.own.feed_forward(self.own.feed_forward_norm(hidden))
        return LayerOutput(hidden, queries)


DECODER_LAYERS: Mapping[str, type[PostNormDecoderLayer | PreNormDecoderLayer]] = {
    "post_norm": PostNormDecoderLayer,
    "pre_norm": PreNormDecoderLayer,
}
"""Layer classes by `LayerLayout.order`."""
