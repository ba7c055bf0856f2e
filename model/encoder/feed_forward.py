"""Feed-forward part of a layer, which processes each token alone.

Notation: T tokens, H hidden size, I intermediate size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config.encoder import ActivationName, EncoderConfig
from model.low_rank import low_rank_maps, mapped


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
        """Map `[T, H]` → `[T, H]`, through `[T, I]`.

        Args:
            hidden: `[T, H]`.
            chosen: `low_rank` of `PackedBatch`.

        """
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
