"""Layer of a decoder: self-attention, cross-attention and feed-forward.

Notation: T_all and S_all tokens of all targets and sources, H hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from model.attention.self_attention import Relative
from model.attention.weights import AttentionRule
from model.config.decoder import DecoderConfig
from model.decoder.cross_attention import CrossAttention
from model.encoder.layers import Layer, PostNormLayer, PreNormLayer
from model.norms import norm_of
from model.packing import PackedBatch

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

        Args:
            hidden: the layer's input.
            target: as for `SelfAttention.attend`, like the next two.
            head_mask: head mask of self-attention.
            relative: relative-position parameters of self-attention.
            read: the cross-attention, over the sources of the batch.

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
