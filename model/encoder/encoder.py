"""The encoder: embeddings, then L layers of self-attention and feed-forward.

Texts are packed: T tokens of all of them, end to end (see `model.artifact.batch`). What looks at
one token alone takes `[T, …]`, or `[1, T, …]` for runtimes that are faster with three axes.

Notation: B texts, T tokens of all of them, S tokens of the longest, H hidden size, L layers,
N heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from torch import Tensor, nn

from model.attention.self_attention import Relative, attention_rule
from model.config.encoder import EncoderConfig
from model.encoder.embeddings import Embeddings
from model.encoder.layers import LAYERS, Layer
from model.encoder.relative_positions import RelativePositions
from model.norms import norm_of
from model.packing import PackedBatch


class EncoderOutput(NamedTuple):
    """Result of a forward pass."""

    hidden_states: tuple[Tensor, ...]
    """L + 1 tensors `[T, H]`: the embeddings, then each layer's output; the last one is normalised
    where the encoder has a norm after its last layer."""
    attentions: tuple[Tensor, ...]
    """L tensors `[B, N, S, S]`, over keys; empty unless asked for."""


class Encoder(nn.Module):
    """Token ids to contextual embeddings."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.relative = RelativePositions(config)
        self.rule = attention_rule(config)
        self.layers = nn.ModuleList(
            LAYERS[config.layer.order](config, number, self.rule)
            for number in range(config.layer_groups)
        )
        self.final_norm = nn.Identity() if config.layer.order == "post_norm" else norm_of(config)

    def forward(
        self,
        batch: PackedBatch,
        head_mask: Tensor | None = None,
        *,
        output_attentions: bool = False,
        relative: Sequence[Relative] | None = None,
    ) -> EncoderOutput:
        """Encode a packed batch.

        Args:
            batch: the tokens of B texts.
            head_mask: `[B, L, N]`, multiplies a head's output; 0 ablates it.
            output_attentions: also return the attention weights of every layer.
            relative: as `relative_parameters` gives them, where they are computed beforehand.

        Returns:
            All hidden states and, when asked, all attentions.

        """
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

    def layer(self, number: int) -> Layer:
        """Layer 0 … L−1, which may be the same module as others."""
        return cast(Layer, self.layers[self.config.layer_group(number)])

    def head_parameters(self) -> list[dict[str, Tensor]]:
        """Parameters of all heads of each layer by name: `[N, …]`, or as `some_heads` takes them.

        With the layer's input they are all that its maps follow from.
        """
        relative = enumerate(self.relative_parameters())
        return [self.layer(number).head_parameters(of_heads) for number, of_heads in relative]

    def value_parameters(self) -> list[dict[str, Tensor]]:
        """What the heads of each layer add of a token follows from them, as `head_parameters`."""
        layers = range(self.config.num_hidden_layers)
        return [self.layer(number).value_parameters() for number in layers]

    def relative_parameters(self) -> list[Relative]:
        """What each layer's heads know of relative positions, which no text changes."""
        shared = self.relative()
        layers = range(self.config.num_hidden_layers)
        return [self.layer(number).attention.relative(shared) for number in layers]
