"""Parts of a layer, computed from its input and its parameters alone.

The computation equals the layers of `model.encoder.layers`, but also returns the summands.
Notation: S tokens of one text, H hidden size, N heads, p size of a head's values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from model.artifact.layer_parts import (
    FINAL_APPLIES,
    FINAL_NORM,
    final_norm_applies,
    parameter_keys,
)
from model.attention.multi_head import ablated
from model.attention.weights import (
    AttentionRule,
    Heads,
    attention_weights,
    input_norm,
    projection,
    split_heads,
)
from model.config.encoder import EncoderConfig
from model.encoder.encoder import Encoder
from model.encoder.feed_forward import ACTIVATIONS
from model.norms import normalize

OF_VALUES = ("value_weight", "value_bias", "output_weight")
"""Parameters of heads that do not affect their maps."""


@dataclass(frozen=True)
class ParametrizedLayer:
    """Layer given by its parameters."""

    config: EncoderConfig
    rule: AttentionRule
    heads: Mapping[str, Tensor]
    """Parameters of the heads, `[N, …]` each, for their maps and their values."""
    parameters: Mapping[str, Tensor]
    """Further parameters, by the names in `model.artifact.layer_parts.parameter_shapes`."""

    def parts(self, states: Tensor, head_mask: Tensor, patch: Tensor) -> tuple[Tensor, ...]:
        """Return the fields of `LayerParts`, in order, for the arrays of a `LayerStep`."""
        outputs = ablated(self._outputs(states), head_mask) + patch  # [N, S, p]
        weight = self.heads["output_weight"].transpose(0, 1).flatten(1)  # [H, N · p]
        bias = self.parameters.get("attention.output.bias")
        attended = functional.linear(outputs.transpose(0, 1).flatten(1), weight, bias)
        match self.config.layer.order:
            case "post_norm":
                residual = self._norm("attention_norm", states + attended)
                mlp = self._feed_forward(residual)
                return outputs, attended, residual, mlp, self._norm("output_norm", residual + mlp)
            case "pre_norm":
                residual = states + attended
                mlp = self._feed_forward(self._norm("feed_forward_norm", residual))
            case "sandwich_norm":
                attended = self._norm("attended_norm", attended)
                residual = states + attended
                fed = self._feed_forward(self._norm("feed_forward_norm", residual))
                mlp = self._norm("output_norm", fed)
        return outputs, attended, residual, mlp, self._final(residual + mlp)

    def _outputs(self, states: Tensor) -> Tensor:
        """Return each head's own output, `[N, S, p]`."""
        of_maps = {name: tensor for name, tensor in self.heads.items() if name not in OF_VALUES}
        heads = Heads.from_parameters(of_maps, self.rule)
        maps = attention_weights(heads, states[None], states[None])
        value = projection(self.heads, "value", partial(input_norm, self.heads, self.rule))
        return (maps @ split_heads(value(states[None]), heads.count))[0]

    def _feed_forward(self, hidden: Tensor) -> Tensor:
        """Map `[S, H]` → `[S, H]`, as `FeedForward` and `GatedFeedForward`."""
        activation = ACTIVATIONS[self.config.hidden_act]
        expanded = self._linear("expand", hidden)
        if self.config.layer.gated:
            expanded = activation(self._linear("gate", hidden)) * expanded
        else:
            expanded = activation(expanded)
        return self._linear("contract", expanded)

    def _linear(self, name: str, hidden: Tensor) -> Tensor:
        weight = self.parameters[f"feed_forward.{name}.weight"]
        return functional.linear(hidden, weight, self.parameters.get(f"feed_forward.{name}.bias"))

    def _norm(self, name: str, hidden: Tensor) -> Tensor:
        config, weight = self.config, self.parameters[f"{name}.weight"]
        bias = self.parameters.get(f"{name}.bias")
        return normalize(config.layer.norm, hidden, weight, bias, config.layer_norm_eps)

    def _final(self, hidden: Tensor) -> Tensor:
        """Apply the final norm if this is the last layer."""
        if not self.config.has_final_norm:
            return hidden
        applies = self.parameters[FINAL_APPLIES] > 0
        return torch.where(applies, self._norm(FINAL_NORM, hidden), hidden)


def parametrized(encoder: Encoder, number: int) -> ParametrizedLayer:
    """Return layer 0 … L−1 of an encoder, given by its parameters alone."""
    config, layer = encoder.config, encoder.layer(number)
    of_heads = layer.head_parameters(encoder.relative_parameters()[number])
    all_heads = {**of_heads, **layer.value_parameters()}
    count = config.num_attention_heads
    named = dict(encoder.named_parameters())
    parameters: dict[str, Tensor] = {
        name: named[key] for name, key in parameter_keys(config, number).items()
    }
    applies = final_norm_applies(config, number)
    if applies is not None:
        parameters[FINAL_APPLIES] = torch.from_numpy(applies)
    heads = {n: t.repeat_interleave(count // len(t), 0) for n, t in all_heads.items()}
    return ParametrizedLayer(config, encoder.rule, heads, parameters)
