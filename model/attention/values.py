"""Inner products of the vectors that heads add for a token: the single definition.

A head h of n adds Σ_k a_h[q, k] · f_h(x_k) to a query, with f_h(x) = (x W_V^h + b_V^h) W_O^h; the
bias of the output projection belongs to no head (Kobayashi et al. 2020,
https://arxiv.org/abs/2004.10102, section 3). The products ⟨f_g(x_k), f_h(x_k)⟩ and the weights
determine the norms of the vectors that a head adds, and that all heads add together.

Notation: S tokens, n requested heads, H hidden size, p size of a head's values.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from model.attention.weights import AttentionRule, input_norm, projection, split_heads


def value_products(parameters: Mapping[str, Tensor], rule: AttentionRule, states: Tensor) -> Tensor:
    """Return ⟨f_g(x_k), f_h(x_k)⟩ for all pairs of n heads.

    Args:
        parameters: `value_weight` `[n, p, H]`, `value_bias` `[n, p]` if there is one, and
            `output_weight` `[n, H, p]`; with the norm's parameters, as in `Heads.from_parameters`,
            if the layer normalises its input first.
        rule: attention rule of all heads.
        states: input of the layer, `[S, H]`.

    Returns:
        `[S, n, n]`.

    """
    enter = partial(input_norm, parameters, rule)
    weight = parameters["output_weight"]
    values = split_heads(projection(parameters, "value", enter)(states[None]), weight.shape[0])[0]
    added = (values @ weight.transpose(1, 2)).transpose(0, 1)  # [S, n, H]
    return added @ added.transpose(1, 2)
