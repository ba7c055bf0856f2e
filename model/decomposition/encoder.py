"""Layer-by-layer decomposition of an encoder's states (Modarressi et al. 2023, DecompX).

Notation: S tokens of a text, C of them in a step, P = S + 1 parts, H hidden size, L layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.artifact.decomposition import (
    APPLIES,
    layer_keys,
    norm_applies,
    value_keys,
    value_shapes,
)
from model.decomposition.layers import LayerDecomposition, entering, values
from model.encoder.encoder import Encoder


class EncoderDecomposition:
    """Steps of a text's decomposition with an encoder's own parameters."""

    def __init__(self, encoder: Encoder) -> None:
        self.config = config = encoder.config
        named = dict(encoder.named_parameters())
        self._layers = [
            LayerDecomposition(
                config,
                encoder.rule,
                {
                    name: tensor.repeat_interleave(config.num_attention_heads // len(tensor), dim=0)
                    for name, tensor in of_heads.items()
                },
                {name: named[key] for name, key in layer_keys(config, number).items()},
            )
            for number, of_heads in enumerate(encoder.head_parameters())
        ]
        normalized = config.has_final_norm
        self._entering = [
            {name: named[key] for name, key in value_keys(config, number).items()}
            | ({APPLIES: _flag(norm_applies(config, number))} if APPLIES in shapes else {})
            for shapes in [value_shapes(config)]
            for number in range(config.num_hidden_layers + normalized)
        ]

    def values(self, parts: Tensor, layer: int) -> Tensor:
        """Return values `[m, C, P, p]` of parts `[C, P, H]` that enter layer 0 … L−1."""
        parameters = self._entering[layer]
        return values(self.config, parameters, entering(self.config, parameters, parts))

    def through(
        self, parts: Tensor, layer: int, rows: Tensor, states: Tensor, of_all: Tensor
    ) -> Tensor:
        """Return the rows after a layer; after the last layer, with the encoder's final norm.

        Args:
            parts: `[C, P, H]`, parts of the tokens `rows` that enter the layer.
            layer: index of the layer, 0 … L−1.
            rows: indices of the tokens, int64 `[C]`.
            states: `[S, H]`, states of all tokens that enter the layer.
            of_all: values `[m, S, P, p]` of all tokens.

        Returns:
            `[C, P, H]`.

        """
        leaving = self._layers[layer].through(states, rows, of_all, parts)
        after = layer + 1
        if after < self.config.num_hidden_layers or after == len(self._entering):
            return leaving
        return entering(self.config, self._entering[after], leaving)


def beginning(parts: Tensor) -> Tensor:
    """Return the parts `[S, P, H]` of hidden state 0 `[S, H]`, where tokens are not mixed yet."""
    own = torch.eye(len(parts), dtype=parts.dtype)[..., None] * parts[:, None]
    return torch.cat((parts[:, None], own), dim=1)


def decomposed(encoder: Encoder, embedded: Tensor) -> Tensor:
    """Return the parts `[S, P, H]` of the last hidden state, given hidden state 0 `[S, H]`."""
    steps, parts = EncoderDecomposition(encoder), beginning(embedded)
    rows = torch.arange(len(embedded))
    for layer in range(encoder.config.num_hidden_layers):
        of_all = steps.values(parts, layer)
        parts = steps.through(parts, layer, rows, parts[:, 0], of_all)
    return parts


def _flag(applies: bool) -> Tensor:
    return torch.full((1,), float(applies))
