"""Layer of an encoder: self-attention and feed-forward, each with a residual and its norms.

Notation: B texts, T tokens of all of them, S tokens of the longest, H hidden size, N heads, I
intermediate size.
"""

from __future__ import annotations

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
    """Feed-forward W₂ f(W₁ x + b₁) + b₂ for each token alone (Vaswani et al. 2017, eq. 2).

    A gated one is W₂ (f(V x) ⊙ W₁ x) (Shazeer 2020, eq. 6, https://arxiv.org/abs/2002.05202).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        h, i, bias = config.hidden_size, config.intermediate_size, config.layer.feed_forward_bias
        output_bias = config.layer.feed_forward_output_bias
        self.expand = nn.Linear(h, i, bias=bias)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.contract = nn.Linear(i, h, bias=bias if output_bias is None else output_bias)
        gate = {"gate": (h, i)} if config.layer.gated else {}
        self.low_rank = low_rank_maps(config, expand=(h, i), contract=(i, h), **gate)
        self.gate = nn.Linear(h, i, bias=bias) if gate else None

    def forward(self, hidden: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Map `[T, H]` → `[T, H]`, through `[T, I]`, twice if gated."""
        expanded = mapped(self, "expand", hidden, chosen)
        if self.gate is None:
            return mapped(self, "contract", self.activation(expanded), chosen)
        gate = self.activation(mapped(self, "gate", hidden, chosen))
        return mapped(self, "contract", gate * expanded, chosen)


class Layer(nn.Module):
    """Layer of self-attention, then feed-forward: two parts f with a residual and norms.

    A part is norm(x + f(x)) with the order `post_norm` (Vaswani et al. 2017, section 3.1),
    x + f(norm(x)) with `pre_norm` (Xiong et al. 2020, https://arxiv.org/abs/2002.04745), or
    x + norm(f(norm(x))) with `sandwich_norm` (Ding et al. 2021, https://arxiv.org/abs/2105.13290).
    """

    def __init__(self, config: EncoderConfig, number: int, rule: AttentionRule) -> None:
        """Allocate layer 0 … L−1, whose heads follow the rule of all layers."""
        super().__init__()
        order = config.layer.order
        self.attention = SelfAttention(config, number, rule)
        self.feed_forward = FeedForward(config)
        self.post_norm = order == "post_norm"
        self._every_layer_has_it = config.layer.first_attention_norm
        self._normed = number > 0 or self._every_layer_has_it

        def norm(*, exists: bool) -> nn.Module:
            return norm_of(config) if exists else nn.Identity()

        self.attention_norm = norm(exists=self._normed)
        self.feed_forward_norm = norm(exists=not self.post_norm)
        self.attended_norm = norm(exists=order == "sandwich_norm")
        self.output_norm = norm(exists=order != "pre_norm")

    def forward(
        self, hidden: Tensor, batch: PackedBatch, head_mask: Tensor | None, relative: Relative
    ) -> Tensor:
        """Map `[T, H]` → `[T, H]`; arguments as for `SelfAttention.attend`."""
        return self.fed(self.attended(hidden, batch, head_mask, relative), batch.low_rank)

    def attended(
        self, hidden: Tensor, batch: PackedBatch, head_mask: Tensor | None, relative: Relative
    ) -> Tensor:
        """Return the state `[T, H]` after self-attention, its residual and its norms."""
        attended = self.attention.attend(self._entering(hidden), batch, head_mask, relative)
        if self.post_norm:
            return cast(Tensor, self.attention_norm(hidden + attended))
        return hidden + cast(Tensor, self.attended_norm(attended))

    def fed(self, hidden: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Return the state `[T, H]` after the feed-forward, its residual and its norms."""
        fed = self.feed_forward(self.feed_forward_norm(hidden), chosen)
        if self.post_norm:
            return cast(Tensor, self.output_norm(hidden + fed))
        return hidden + cast(Tensor, self.output_norm(fed))

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
        return hidden if self.post_norm else cast(Tensor, self.attention_norm(hidden))

    def _input_norm(self) -> dict[str, Tensor]:
        """Return the parameters of the norm of the layer's input, if layers have one.

        A layer without it then gets a norm that is not applied: all layers have parameters of the
        same names, because one graph serves them all.
        """
        if self.post_norm:
            return {}
        norm = self.attention_norm if self._normed else self.feed_forward_norm
        parameters = {
            f"input_norm_{name}": tensor[None] for name, tensor in norm.named_parameters()
        }
        if not self._every_layer_has_it:
            parameters["input_norm_applies"] = torch.full((1,), float(self._normed))
        return parameters
