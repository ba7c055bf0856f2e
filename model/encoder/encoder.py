"""Encoder: embeddings, then L layers of self-attention and feed-forward.

Texts are packed: T tokens of all texts, end to end (see `model.numerics.batch`). Operations on
single tokens take `[T, …]`, or `[1, T, …]` for runtimes that are faster with three axes.

Notation: B texts, T tokens of all of them, S tokens of the longest, H hidden size, L layers,
N heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

from torch import Tensor, nn

from model.attention.self_attention import Relative, attention_rule
from model.attention.weights import AttentionRule
from model.config.encoder import EncoderConfig
from model.encoder.embeddings import Embeddings, RelativePositions
from model.encoder.layers import Layer
from model.low_rank import with_chosen
from model.norms import norm_of
from model.packing import PackedBatch


class EncoderOutput(NamedTuple):
    """Result of a forward pass."""

    hidden_states: tuple[Tensor, ...]
    """L + 1 tensors `[T, H]`: the embeddings, then each layer's output. The last one is normalised
    if the encoder has a norm after its last layer."""
    attentions: tuple[Tensor, ...]
    """L tensors `[B, N, S, S]`, attention weights over keys; empty unless requested."""


class LayerStack(nn.Module):
    """Embeddings, relative positions, layers and last norm of an encoder or a decoder."""

    def __init__(
        self, config: EncoderConfig, make_layer: Callable[[int, AttentionRule], nn.Module]
    ) -> None:
        """Allocate the modules; `make_layer` makes layer 0 … of `config.layer_groups`."""
        super().__init__()
        self._stack = config
        self.embeddings = Embeddings(config)
        self.relative = RelativePositions(config)
        self.rule = attention_rule(config)
        self.layers = nn.ModuleList(
            make_layer(number, self.rule) for number in range(config.layer_groups)
        )
        self.final_norm = norm_of(config) if config.has_final_norm else nn.Identity()

    def layer(self, number: int) -> Layer:
        """Return layer 0 … L−1; layers of a group are the same module."""
        return cast(Layer, self.layers[self._stack.layer_group(number)])

    def head_parameters(self) -> list[dict[str, Tensor]]:
        """Return name → tensor of each layer's heads: `[N, …]`, or as `some_heads` takes them.

        A layer's maps depend on these parameters and on its input alone.
        """
        relative = enumerate(self.relative_parameters())
        return [self.layer(number).head_parameters(of_heads) for number, of_heads in relative]

    def value_parameters(self) -> list[dict[str, Tensor]]:
        """Return the parameters of each layer's value vectors, as `head_parameters`."""
        layers = range(self._stack.num_hidden_layers)
        return [self.layer(number).value_parameters() for number in layers]

    def relative_parameters(self) -> list[Relative]:
        """Return the relative-position parameters of each layer's heads, which no text changes."""
        of_layers = enumerate(self.relative())
        return [self.layer(number).attention.relative(shared) for number, shared in of_layers]


class Encoder(LayerStack):
    """Encoder from token ids to contextual embeddings."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, partial(Layer, config))
        self.config = config

    def forward(
        self,
        batch: PackedBatch,
        head_mask: Tensor | None = None,
        *,
        output_attentions: bool = False,
        relative: Sequence[Relative] | None = None,
    ) -> EncoderOutput:
        """Encode a packed batch.

        `head_mask` `[B, L, N]` multiplies a head's output; 0 ablates it. `relative` is the result
        of `relative_parameters`, if computed beforehand.
        """
        batch = with_chosen(batch, self.config, self.embeddings.word.weight.dtype)
        hidden_states = [self.embeddings(batch)]
        attentions = []
        for number, of_heads in enumerate(relative or self.relative_parameters()):
            layer, entering = self.layer(number), hidden_states[-1]
            of_layer = None if head_mask is None else head_mask[:, number]
            hidden_states.append(layer(entering, batch, of_layer, of_heads))
            if output_attentions:
                attentions.append(layer.maps(entering, batch, of_heads))
        hidden_states[-1] = self.final_norm(hidden_states[-1])
        return EncoderOutput(tuple(hidden_states), tuple(attentions))
