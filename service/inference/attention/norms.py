"""Norms of attention heads' contributions: pure functions of maps and products of values.

Head h adds Σ_k a_h[q, k] · f_h(x_k) to query q, with f_h(x) = (x W_V^h + b_V^h) W_O^h. The bias of
the output projection belongs to no head (Kobayashi et al. 2020, https://arxiv.org/abs/2004.10102,
section 3). Products of values are ⟨f_h(x_k), f_g(x_k)⟩.

Notation: T query tokens and S key tokens, of one text or of a target and its text; N heads.
"""

from __future__ import annotations

import numpy as np

from service.inference.attention.statistics import BLOCK_WEIGHTS, Maps, blocks


def head_norms(maps: Maps, products: Maps) -> Maps:
    """Compute ‖a_h[q, k] · f_h(x_k)‖ of each head.

    Shape: maps `[N, T, S]`, products `[S, N, N]` → `[N, T, S]`.
    """
    squares = np.diagonal(products, axis1=1, axis2=2)
    norms: Maps = maps * np.sqrt(squares.T)[:, None]
    return norms


def norm_shares(maps: Maps, products: Maps) -> Maps:
    """Compute ‖Σ_h a_h[q, k] · f_h(x_k)‖ with normalised rows: the share of q's input from k.

    The norm of the sum over heads follows Kobayashi et al. 2020. The normalisation of rows follows
    GlobEnc's N-FixedRes (Modarressi et al. 2022, https://arxiv.org/abs/2205.03286). A row of zero
    norms stays 0.

    Shape: maps `[N, S, S]`, products `[S, N, N]` → `[S, S]`.
    """
    squares = np.empty(maps.shape[1:], np.float32)
    pairs = np.ascontiguousarray(products.transpose(1, 2, 0))  # [N, N, S]
    for block in blocks(len(squares), BLOCK_WEIGHTS // maps[:, 0].size):
        squares[block] = _squares(maps[:, block], pairs)
    norms: Maps = np.sqrt(np.maximum(squares, 0))  # a sum of 0 may round to a negative number
    total = norms.sum(axis=-1, keepdims=True)
    return np.divide(norms, total, out=np.zeros_like(norms), where=total > 0)


def _squares(maps: Maps, pairs: Maps) -> Maps:
    """Compute Σ_g Σ_h a_g a_h ⟨f_g, f_h⟩.

    Shape: maps `[N, T, S]`, products of pairs of heads `[N, N, S]` → `[T, S]`.
    """
    total = np.zeros(maps.shape[1:], np.float32)
    for head in range(len(maps)):
        inner = maps[head] * pairs[head, head]
        for other in range(head):
            inner += maps[other] * (2 * pairs[head, other])
        inner *= maps[head]
        total += inner
    return total
