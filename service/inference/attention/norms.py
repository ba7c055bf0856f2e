"""Norms of what attention heads add: pure functions of maps and of products of values.

A head h adds Σ_k a_h[q, k] · f_h(x_k) to query q, with f_h(x) = (x W_V^h + b_V^h) W_O^h: the bias
of the output projection belongs to no head (Kobayashi et al. 2020,
https://arxiv.org/abs/2004.10102, section 3). Products of values are ⟨f_h(x_k), f_g(x_k)⟩.

Notation: T query tokens and S key tokens, which are one text's or those of a target and its text;
N heads.
"""

from __future__ import annotations

import numpy as np

from service.inference.attention.statistics import BLOCK_WEIGHTS, Maps, blocks


def head_norms(maps: Maps, products: Maps) -> Maps:
    """‖a_h[q, k] · f_h(x_k)‖ of each head: maps `[N, T, S]`, products `[S, N, N]` → `[N, T, S]`."""
    squares = np.diagonal(products, axis1=1, axis2=2)
    norms: Maps = maps * np.sqrt(squares.T)[:, None]
    return norms


def norm_shares(maps: Maps, products: Maps) -> Maps:
    """‖Σ_h a_h[q, k] · f_h(x_k)‖, rows normalised: how much of what q is given comes from k.

    The norm of the sum over heads is Kobayashi et al. 2020's; its rows are normalised so in
    GlobEnc's N-FixedRes (Modarressi et al. 2022, https://arxiv.org/abs/2205.03286). A row in which
    nothing is given is 0.

    Shape: maps `[N, S, S]`, products `[S, N, N]` → `[S, S]`.
    """
    squares = np.empty(maps.shape[1:], np.float32)
    pairs = np.ascontiguousarray(products.transpose(1, 2, 0))  # [N, N, S]
    length = BLOCK_WEIGHTS // maps[:, 0].size
    for weights, found in blocks(length, maps.transpose(1, 0, 2), squares):
        found[...] = _squares(weights.transpose(1, 0, 2), pairs)
    norms: Maps = np.sqrt(np.maximum(squares, 0))  # a sum that is 0 may be rounded below it
    total = norms.sum(axis=-1, keepdims=True)
    return np.divide(norms, total, out=np.zeros_like(norms), where=total > 0)


def _squares(maps: Maps, pairs: Maps) -> Maps:
    """Σ_g Σ_h a_g a_h ⟨f_g, f_h⟩: maps `[N, T, S]`, pairs of heads `[N, N, S]` → `[T, S]`."""
    found = np.zeros(maps.shape[1:], np.float32)
    for one in range(len(maps)):
        inner = maps[one] * pairs[one, one]
        for other in range(one):
            inner += maps[other] * (2 * pairs[one, other])
        inner *= maps[one]
        found += inner
    return found
