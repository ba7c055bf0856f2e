"""Layer of an encoder: self-attention and feed-forward, each with a residual and its norms.

Notation: B texts, T tokens of all of them, S tokens of the longest, H hidden size, N heads, I
intermediate size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.attention.self_attention import Relative, SelfAttention
from model.attention.weights import AttentionRule
from model.config.encoder import ActivationName, EncoderConfig
from model.low_rank import low_rank_maps, mapped
from model.norms import norm_of
from model.packing import PackedBatch


def quick_gelu(x: Tensor) -> Tensor:
    """Return the approximate GELU x · σ(1.702 x).

    Hendrycks & Gimpel 2016, https://arxiv.org/abs/1606.08415.
    """
    return x * torch.sigmoid(1.702 * x)


_gelu_tanh = partial(functional.gelu, approximate="tanh")
ACTIVATIONS: Mapping[ActivationName, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_fast": _gelu_tanh,
    "gelu_new": _gelu_tanh,
    "gelu_python": functional.gelu,
    "gelu_pytorch_tanh": _gelu_tanh,
    "quick_gelu": quick_gelu,
    "relu": functional.relu,
    "silu": functional.silu,
    "swish": functional.silu,
    "tanh": torch.tanh,
}


class FeedForward(nn.Module):
    """Feed-forward W₂ f(W₁ x + b₁) + b₂ for each token alone (Vaswani et al. 2017, eq. 2)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        h, i, bias = config.hidden_size, config.intermediate_size, config.layer.feed_forward_bias
        output_bias = config.layer.feed_forward_output_bias
        self.expand = nn.Linear(h, i, bias=bias)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.contract = nn.Linear(i, h, bias=bias if output_bias is None else output_bias)
        gate = {"gate": (h, i)} if config.layer.gated else {}
        self.low_rank = low_rank_maps(config, expand=(h, i), contract=(i, h), **gate)

    def forward(self, hidden: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Map `[T, H]` → `[T, H]`, through `[T, I]`."""
        expanded = self.activation(mapped(self, "expand", hidden, chosen))
        return mapped(self, "contract", expanded, chosen)


class GatedFeedForward(FeedForward):
    """Gated feed-forward W₂ (f(V x) ⊙ W₁ x) (Shazeer 2020, eq. 6).

    https://arxiv.org/abs/2002.05202
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        bias = config.layer.feed_forward_bias
        self.gate = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)

    def forward(self, hidden: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Map `[T, H]` → `[T, H]`, through `[T, I]` twice."""
        gate = self.activation(mapped(self, "gate", hidden, chosen))
        expanded = mapped(self, "expand", hidden, chosen)
        return mapped(self, "contract", gate * expanded, chosen)


class Layer(nn.Module, ABC):
    """Layer of self-attention, then feed-forward."""

    def __init__(self, config: EncoderConfig, number: int, rule: AttentionRule) -> None:
        """Allocate layer 0 … L−1, whose heads follow the rule of all layers."""
        super().__init__()
        self.attention = SelfAttention(config, number, rule)
        self.feed_forward = (GatedFeedForward if config.layer.gated else FeedForward)(config)

    @abstractmethod
    def forward(
        self, hidden: Tensor, batch: PackedBatch, head_mask: Tensor | None, relative: Relative
    ) -> Tensor:
        """Map `[T, H]` → `[T, H]`; arguments as for `SelfAttention.attend`."""

    def maps(self, hidden: Tensor, batch: PackedBatch, relative: Relative) -> Tensor:
        """Return the layer's attention weights `[B, N, S, S]` for its input `[T, H]`."""
        return self.attention.maps(self._entering(hidden), batch, relative)

    def head_parameters(self, relative: Relative) -> dict[str, Tensor]:
        """Return the parameters that the layer's maps depend on, beside its input.

        They are `[N, …]` each, or `[m, …]` if consecutive heads share one; see `some_heads`.
        """
        return self.attention.head_parameters(relative) | self._input_norm()

    def value_parameters(self) -> dict[str, Tensor]:
        """Return the parameters of the heads' added vectors, likewise; see `value_products`."""
        return self.attention.value_parameters() | self._input_norm()

    def _entering(self, hidden: Tensor) -> Tensor:
        """Return the input of attention, for the layer's input `[T, H]`."""
        return hidden

    def _input_norm(self) -> dict[str, Tensor]:
        """Return the parameters of the norm of the layer's input."""
        return {}


class PostNormLayer(Layer):
    """Layer with norm(x + f(x)) for each part (Vaswani et al. 2017, section 3.1)."""

    def __init__(self, config: EncoderConfig, number: int, rule: AttentionRule) -> None:
        super().__init__(config, number, rule)
        self.attention_norm = norm_of(config)
        self.output_norm = norm_of(config)

    def forward(
        self, hidden: Tensor, batch: PackedBatch, head_mask: Tensor | None, relative: Relative
    ) -> Tensor:
        """Map `[T, H]` → `[T, H]`."""
        attended = self.attention.attend(hidden, batch, head_mask, relative)
        hidden = self.attention_norm(hidden + attended)
        fed = self.feed_forward(hidden, batch.low_rank)
        return self.output_norm(hidden + fed)


class PreNormLayer(Layer):
    """Layer with x + f(norm(x)) for each part (Xiong et al. 2020).

    https://arxiv.org/abs/2002.04745
    """

    def __init__(self, config: EncoderConfig, number: int, rule: AttentionRule) -> None:
        super().__init__(config, number, rule)
        self._every_layer_has_it = config.layer.first_attention_norm
        self._normed = number > 0 or self._every_layer_has_it
        self.attention_norm = norm_of(config) if self._normed else nn.Identity()
        self.feed_forward_norm = norm_of(config)

    def forward(
        self, hidden: Tensor, batch: PackedBatch, head_mask: Tensor | None, relative: Relative
    ) -> Tensor:
        """Map `[T, H]` → `[T, H]`."""
        attended = self.attention.attend(self.attention_norm(hidden), batch, head_mask, relative)
        hidden = hidden + attended
        normed = self.feed_forward_norm(hidden)
        return hidden + self.feed_forward(normed, batch.low_rank)

    def _entering(self, hidden: Tensor) -> Tensor:
        return cast(Tensor, self.attention_norm(hidden))

    def _input_norm(self) -> dict[str, Tensor]:
        """Return the norm's parameters; a layer without one gets a norm that is not applied.

        All layers have parameters of the same names, because one graph serves them all.
        """
        norm = self.attention_norm if self._normed else self.feed_forward_norm
        parameters = {
            f"input_norm_{name}": tensor[None] for name, tensor in norm.named_parameters()
        }
        if not self._every_layer_has_it:
            parameters["input_norm_applies"] = torch.full((1,), float(self._normed))
        return parameters


class SandwichNormLayer(PreNormLayer):
    """Layer with x + norm(f(norm(x))) for each part (Ding et al. 2021).

    https://arxiv.org/abs/2105.13290
    """

    def __init__(self, config: EncoderConfig, number: int, rule: AttentionRule) -> None:
        super().__init__(config, number, rule)
        self.attended_norm = norm_of(config)
        self.output_norm = norm_of(config)

    def forward(
        self, hidden: Tensor, batch: PackedBatch, head_mask: Tensor | None, relative: Relative
    ) -> Tensor:
        """Map `[T, H]` → `[T, H]`."""
        attended = self.attention.attend(self.attention_norm(hidden), batch, head_mask, relative)
        hidden = hidden + self.attended_norm(attended)
        fed = self.feed_forward(self.feed_forward_norm(hidden), batch.low_rank)
        return hidden + self.output_norm(fed)


LAYERS: Mapping[str, type[Layer]] = {
    "post_norm": PostNormLayer,
    "pre_norm": PreNormLayer,
    "sandwich_norm": SandwichNormLayer,
}
"""Layer classes by `LayerLayout.order`."""
