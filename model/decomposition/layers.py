"""Decomposition of an encoder's states, layer by layer and part by part (DecompX).

A state `[…, d]` becomes `[…, P, d]`: part 0 is the state itself, the others are shares that sum to
it. Once factors that depend on the state are frozen, every step is linear in the shares, so that
the sum stays exact (Modarressi et al. 2023, https://arxiv.org/abs/2306.02873).
Attention weights, scales of norms, slopes of activations and gates are those of the state, frozen.
The layers equal those of `model.encoder.layers`, given by their parameters alone.

Notation: S tokens of a text, C of them in a step, P = S + 1 parts, d and e sizes of a vector, H
hidden size, L layers, N query heads, m key and value heads, p size of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from model.artifact.decomposition import (
    APPLIES,
    VALUE_BIAS,
    layer_keys,
    norm_applies,
    value_keys,
    value_shapes,
)
from model.attention.weights import AttentionRule, Heads
from model.config.encoder import EncoderConfig, NormName
from model.encoder.encoder import Encoder
from model.encoder.layers import ACTIVATIONS


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

        `parts` `[C, P, H]` of the tokens `rows`, int64 `[C]`, and `states` `[S, H]` of all tokens
        enter the layer; `of_all` are the values `[m, S, P, p]` of all tokens. The result is `[C, P,
        H]`.
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


_SMALLEST = 1e-6
"""Smallest magnitude of an activation's input; smaller inputs get the slope at this value."""


def whole(parts: Tensor) -> Tensor:
    """Return the state `[C, 1, d]` itself."""
    return parts.narrow(-2, 0, 1)


def shifted(parts: Tensor, bias: Tensor | None) -> Tensor:
    """Add a bias `[d]` to parts `[C, P, d]`, of which share i gets |xᵢ · b| / Σⱼ |xⱼ · b|.

    This is DecompX's "absdot", the default of its code. If all shares are orthogonal to the bias,
    it is divided equally.
    """
    if bias is None:
        return parts
    return parts + bias_shares((parts * bias).sum(dim=-1))[..., None] * bias


def bias_shares(products: Tensor) -> Tensor:
    """Return each part's share of a bias, given products with it `[C, P]`; 1 for the state."""
    count = products.shape[-1]
    is_whole = torch.arange(count, device=products.device) == 0
    along = torch.where(is_whole, 0.0, products.abs())
    total = along.sum(dim=-1, keepdim=True)
    shares = torch.where(total > 0, along / total, 1 / (count - 1))
    return torch.where(is_whole, 1.0, shares)


def projected(parts: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return W x + b, `[C, P, e]`, of parts `[C, P, d]` with a weight `[e, d]`."""
    return shifted(functional.linear(parts, weight), bias)


def normalized(
    parts: Tensor, kind: NormName, weight: Tensor, bias: Tensor | None, eps: float
) -> Tensor:
    """Apply a norm whose scale, 1 / σ or 1 / rms of the state, is frozen; `[C, P, d]`.

    A layer norm's mean is linear, so each share is centred by its own mean (Kobayashi et al. 2021,
    https://arxiv.org/abs/2109.07152).
    """
    if kind == "layer_norm":
        parts = parts - parts.mean(dim=-1, keepdim=True)
    scale = torch.rsqrt(whole(parts).square().mean(dim=-1, keepdim=True) + eps)
    return shifted(parts * scale * weight, bias)


def slope(x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Return f(x) / x, to be frozen, so that f(x) is linear in the parts of x (DecompX)."""
    x = torch.where(x.abs() < _SMALLEST, _SMALLEST, x)
    return activation(x) / x


@dataclass(frozen=True)
class LayerDecomposition:
    """Layer given by its parameters."""

    config: EncoderConfig
    rule: AttentionRule
    heads: Mapping[str, Tensor]
    """Parameters of all N heads, as `Heads.from_parameters` takes them."""
    parameters: Mapping[str, Tensor]
    """Parameters by the names of `layer_shapes`."""

    def through(self, states: Tensor, rows: Tensor, values: Tensor, parts: Tensor) -> Tensor:
        """Return the parts of some tokens after the layer.

        The hidden state `[S, H]` and `parts` `[C, P, H]` of the tokens `rows`, int64 `[C]`, enter
        the layer; `values` `[m, S, P, p]` is the result of `values` for the entering parts of all
        tokens. The result is `[C, P, H]`.
        """
        context = self._context(self.maps(states, rows), values)
        attended = projected(context, self.parameters["attention.output.weight"])
        match self.config.layer.order:
            case "post_norm":
                middle = self._norm("attention_norm", shifted(parts + attended, self._bias()))
                return self._norm("output_norm", middle + self._feed_forward(middle))
            case "pre_norm":
                middle = shifted(parts + attended, self._bias())
                return middle + self._feed_forward(self._norm("feed_forward_norm", middle))
            case "sandwich_norm":
                added = self._norm("attended_norm", shifted(attended, self._bias()))
                middle = parts + added
                fed = self._feed_forward(self._norm("feed_forward_norm", middle))
                return middle + self._norm("output_norm", fed)

    def maps(self, states: Tensor, rows: Tensor) -> Tensor:
        """Return attention weights `[N, C, S]` of some queries, by the single definition."""
        heads = Heads.from_parameters(self.heads, self.rule)
        query, key = heads.projected(states[None], states[None])
        distance = torch.arange(states.shape[0], device=states.device) - rows[:, None]
        return heads.weights(torch.index_select(query, 2, rows), key, distance=distance)[0]

    def _context(self, maps: Tensor, values: Tensor) -> Tensor:
        """Return the heads' context `[C, P, N·p]`; heads that share values are batched."""
        n, c, s = maps.shape
        m, _, count, p = values.shape
        gathered = maps.reshape(m, n // m * c, s) @ values.reshape(m, s, count * p)
        return gathered.reshape(n, c, count, p).permute(1, 2, 0, 3).reshape(c, count, n * p)

    def _bias(self) -> Tensor | None:
        """Return W_o b_v + b_o: as weights sum to 1, the values' bias is a bias of the output."""
        output = self.parameters.get("attention.output.bias")
        values = self.parameters.get(VALUE_BIAS)
        if values is None:
            return output
        of_heads = values.reshape(self.config.num_key_value_heads, 1, -1)
        times = self.config.num_attention_heads // self.config.num_key_value_heads
        all_heads = of_heads.expand(-1, times, -1).flatten()
        return functional.linear(all_heads, self.parameters["attention.output.weight"], output)

    def _feed_forward(self, parts: Tensor) -> Tensor:
        """Return W₂ (s ⊙ (W₁ x + b₁)) + b₂ of parts `[C, P, H]`, with the state's s, frozen.

        s is the slope of the activation, or the activated gate. The first bias is added at the
        output: the product x · W₁ᵀ b₁ determines a part's share of W₂ (s ⊙ b₁).
        """
        activation = ACTIVATIONS[self.config.hidden_act]
        weight, bias = self._linear("expand")
        if self.config.layer.gated:
            scale = activation(functional.linear(whole(parts), *self._linear("gate")))
        else:
            scale = slope(functional.linear(whole(parts), weight, bias), activation)
        contract, last = self._linear("contract")
        fed = functional.linear(functional.linear(parts, weight) * scale, contract)
        if bias is not None:
            shares = bias_shares((parts * (bias @ weight)).sum(dim=-1))
            fed = fed + shares[..., None] * functional.linear(scale * bias, contract)
        return shifted(fed, last)

    def _linear(self, name: str) -> tuple[Tensor, Tensor | None]:
        prefix = f"feed_forward.{name}"
        return self.parameters[f"{prefix}.weight"], self.parameters.get(f"{prefix}.bias")

    def _norm(self, name: str, parts: Tensor) -> Tensor:
        return norm_of_parts(self.config, self.parameters, name, parts)


def norm_of_parts(
    config: EncoderConfig, parameters: Mapping[str, Tensor], name: str, parts: Tensor
) -> Tensor:
    """Apply a norm of the encoder's kind to parts `[C, P, H]`."""
    weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
    return normalized(parts, config.layer.norm, weight, bias, config.layer_norm_eps)


def entering(config: EncoderConfig, parameters: Mapping[str, Tensor], parts: Tensor) -> Tensor:
    """Return parts `[C, P, H]` as inputs of a layer's projections; parameters as `value_shapes`."""
    if config.layer.order == "post_norm":
        return parts
    normed = norm_of_parts(config, parameters, "attention_norm", parts)
    if APPLIES not in parameters:
        return normed
    return torch.where(parameters[APPLIES] > 0, normed, parts)


def values(config: EncoderConfig, parameters: Mapping[str, Tensor], parts: Tensor) -> Tensor:
    """Return values `[m, C, P, p]` of parts `[C, P, H]` that enter the projection."""
    joined = projected(parts, parameters["attention.value.weight"], parameters.get(VALUE_BIAS))
    split = joined.reshape(*joined.shape[:2], config.num_key_value_heads, config.head_size)
    return split.permute(2, 0, 1, 3)
