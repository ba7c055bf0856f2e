"""Norms of what attention heads add: pure functions of maps and of products of values.

A head h adds Σ_k a_h[q, k] · f_h(x_k) to query q, with f_h(x) = (x W_V^h + b_V^h) W_O^h: the bias
of the output projection belongs to no head (Kobayashi et al. 2020,
https://arxiv.org/abs/2004.10102, section 3). Products of values are ⟨f_h(x_k), f_g(x_k)⟩.

Notation: S tokens of one text, N heads.
"""

from __future__ import annotations

import numpy as np

from service.inference.statistics import BLOCK_WEIGHTS, Maps


def head_norms(maps: Maps, products: Maps) -> Maps:
    """‖a_h[q, k] · f_h(x_k)‖ of each head: maps `[N, S, S]`, products `[S, N, N]` → `[N, S, S]`."""
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
    heads, queries, keys = maps.shape
    squares = np.empty((keys, queries), np.float32)
    step = max(1, BLOCK_WEIGHTS // (heads * queries))
    for start in range(0, keys, step):
        some = slice(start, start + step)
        weights = np.ascontiguousarray(maps[..., some].transpose(2, 1, 0))  # [keys, queries, heads]
        squares[some] = np.vecdot(weights @ products[some], weights)
    norms: Maps = np.sqrt(np.maximum(squares, 0)).T  # a sum that is 0 may be rounded below it
    total = norms.sum(axis=-1, keepdims=True)
    return np.divide(norms, total, out=np.zeros_like(norms), where=total > 0)
