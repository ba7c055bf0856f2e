"""What heads add of each token before any attention, as inner products: the one definition.

A head h of n adds Σ_k a_h[q, k] · f_h(x_k) to a query, with f_h(x) = (x W_V^h + b_V^h) W_O^h: the
bias of the output projection belongs to no head (Kobayashi et al. 2020,
https://arxiv.org/abs/2004.10102, section 3). From ⟨f_g(x_k), f_h(x_k)⟩ and the weights follow the
norms of what a head adds, and of what all of them add together.

Notation: S tokens, n heads asked for, H hidden size, p size of a head's values.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from model.attention.weights import AttentionRule, input_norm, projection, split_heads


def value_products(parameters: Mapping[str, Tensor], rule: AttentionRule, states: Tensor) -> Tensor:
    """⟨f_g(x_k), f_h(x_k)⟩ of any two of n heads.

    Args:
        parameters: `value_weight` `[n, p, H]`, `value_bias` `[n, p]` where there is one, and
            `output_weight` `[n, H, p]`; of a layer that normalises its input first, the norm's, as
            `Heads.from_parameters` takes them.
        rule: of all heads.
        states: what enters the layer, `[S, H]`.

    Returns:
        `[S, n, n]`.

    """
    enter = partial(input_norm, parameters, rule)
    weight = parameters["output_weight"]
    values = split_heads(projection(parameters, "value", enter)(states[None]), weight.shape[0])[0]
    added = (values @ weight.transpose(1, 2)).transpose(0, 1)  # [S, n, H]
    return added @ added.transpose(1, 2)
