"""Statistics and norms of attention heads: pure functions of attention maps.

Notation: `[S]` tokens of one text and `[T]` of its target, `[N]` heads, `[H]` hidden size, `…` any
leading axes (layers, heads). A map is float32 `[S, S]`, queries × keys, with weights ≥ 0 and rows
that sum to 1; decoder maps are `[T, T]`, maps of cross-attention `[T, S]`.

Head h adds Σ_k a_h[q, k] · f_h(x_k) to query q, with f_h(x) = (x W_V^h + b_V^h) W_O^h. The bias of
the output projection belongs to no head (Kobayashi et al. 2020, https://arxiv.org/abs/2004.10102,
section 3). Products of values are ⟨f_h(x_k), f_g(x_k)⟩.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Maps = NDArray[np.float32]
Indices = NDArray[np.int32]

STATISTICS = ("entropy", "distance", "confidence", "cls", "sep", "self", "previous", "next")
CROSS_STATISTICS = ("entropy", "confidence", "cls", "sep")
"""Statistics of cross-attention, which cannot compare positions of queries and keys."""
BLOCK_WEIGHTS = 1 << 18
"""Number of weights in temporary arrays (a head of 512 tokens), so that they stay in the cache."""
SMALLEST = np.finfo(np.float32).tiny
FEW = 32
"""Maximum k for which finding keys one by one is faster than sorting."""
INDEX_BITS = np.uint64(32)
INDEX_MASK = np.uint64(0xFFFFFFFF)


def top_k(maps: Maps, k: int) -> tuple[Indices, Maps]:
    """Return the indices and values of the k largest weights of each query.

    Shape: `[…, S, S]` → int32 and float32 `[…, S, min(k, S)]`, largest first; among equal weights,
    the lower index first.
    """
    k = min(k, maps.shape[-1])
    indices = np.empty((*maps.shape[:-1], k), np.int32)
    values = np.empty((*maps.shape[:-1], k), np.float32)
    find = one_by_one if k <= FEW else sorted_keys
    size = maps.shape[-1]
    rows, best, weights = maps.reshape(-1, size), indices.reshape(-1, k), values.reshape(-1, k)
    for block in blocks(len(rows), BLOCK_WEIGHTS // size):
        best[block] = find(rows[block], k)
        weights[block] = np.take_along_axis(rows[block], best[block], axis=-1)
    return indices, values


def one_by_one(rows: Maps, k: int) -> NDArray[np.integer]:
    """Find and mask the maximum of every row, k times: `[R, S]` → `[R, k]`."""
    remaining = rows.copy()
    row_indices = np.arange(len(rows))
    best = np.empty((len(rows), k), np.intp)
    for place in range(k):
        best[:, place] = remaining.argmax(axis=-1)
        remaining[row_indices, best[:, place]] = -1
    return best


def sorted_keys(rows: Maps, k: int) -> NDArray[np.integer]:
    """Find the k largest weights by sorting integer keys: `[R, S]` → `[R, k]`.

    Keys ascend with falling weights, and with rising indices among equal weights. Floats ≥ 0 have
    the order of their bits: the inverted bits are the upper half of a key, the index the lower
    half. Keys are unique, so that a partial sort is deterministic.
    """
    keys = np.invert(rows.view(np.uint32)).astype(np.uint64)
    keys <<= INDEX_BITS
    keys |= np.arange(rows.shape[-1], dtype=np.uint64)
    if k < rows.shape[-1]:
        keys = np.partition(keys, k - 1, axis=-1)[:, :k]
    keys.sort(axis=-1)
    return keys & INDEX_MASK


def statistics(
    maps: Maps, separators: Sequence[int], names: Sequence[str] = STATISTICS
) -> dict[str, Maps]:
    """Compute statistics of each head's rows, averaged over all query tokens.

    `entropy` in nats; `distance` Σ_k a[q, k]·|q − k| in tokens; `confidence` the row's largest
    weight; `cls` the weight on token 0; `sep` the summed weight on the tokens at `separators`;
    `self` the weight on the query itself; `previous` and `next` the weights on its neighbours, over
    the queries that have such a neighbour, 0 if S = 1. Cross-attention has only `CROSS_STATISTICS`.

    Shape: `[…, S, S]` → `[…]` for each name.
    """
    values = {name: np.empty(maps.shape[:-2], np.float32) for name in names}
    queries, keys = maps.shape[-2:]
    heads = maps.reshape(-1, queries, keys)
    results = {name: array.reshape(-1) for name, array in values.items()}
    columns, distances = list(separators), None
    if "distance" in names:
        positions = np.arange(keys, dtype=np.float64)
        distances = np.abs(positions[:, None] - positions)
    for block in blocks(len(heads), BLOCK_WEIGHTS // (queries * keys)):
        means = row_means(heads[block], columns)
        if distances is not None:
            means |= place_means(heads[block], distances)
        for name, result in results.items():
            result[block] = means[name]
    return values


def row_means(maps: Maps, separators: list[int]) -> dict[str, NDArray[np.float64]]:
    """Compute the statistics of weights alone: `[N, T, S]` → `[N]` each."""
    logarithms = np.maximum(maps, SMALLEST)  # 0·log 0 = 0
    np.log(logarithms, out=logarithms)
    return {
        "entropy": 0 - mean(np.vecdot(maps, logarithms)),  # never −0
        "confidence": mean(maps.max(axis=-1)),
        "cls": mean(maps[..., 0]),
        "sep": mean(maps[..., separators].sum(axis=-1, dtype=np.float64)),
    }


def place_means(maps: Maps, distances: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Compute the statistics of keys' positions relative to the query: `[N, S, S]` → `[N]` each."""
    return {
        "distance": mean(np.vecdot(maps, distances)),
        "self": mean(diagonal(maps, 0)),
        "previous": mean(diagonal(maps, -1)),
        "next": mean(diagonal(maps, 1)),
    }


def mean(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Average over the last axis in float64; 0 if the axis is empty."""
    return values.sum(axis=-1, dtype=np.float64) / max(values.shape[-1], 1)


def diagonal(maps: Maps, offset: int) -> Maps:
    """Return each query's weight on the token `offset` places to its right: `[…, S − |offset|]`."""
    return np.diagonal(maps, offset, axis1=-2, axis2=-1)


def blocks(total: int, length: int) -> Iterator[slice]:
    """Yield slices of `total` entries, with `length` entries (at least one) at a time."""
    for start in range(0, total, max(1, length)):
        yield slice(start, start + max(1, length))


def rollout_step(previous: Maps | None, mean_map: Maps) -> Maps:
    """Compute the attention rollout after another layer (Abnar & Zuidema 2020), `[S, S]`.

    The mean over a layer's heads plus the identity, with renormalised rows, is multiplied by the
    rollout of the layers below, None before the first: R_l = Â_l · R_{l−1}
    (https://arxiv.org/abs/2005.00928).
    """
    mixed = mean_map.copy()
    mixed[np.diag_indices_from(mixed)] += 1
    mixed /= mixed.sum(axis=-1, keepdims=True)
    return mixed if previous is None else mixed @ previous


def shift(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """Compute 1 − cosine of vectors, 0 … 2.

    The result is 0 between two zero vectors, and 1 between a zero vector and another.

    Shape: `[…, H]` twice → `[…]`.
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(a, axis=-1), np.linalg.norm(b, axis=-1)
    product = lengths[0] * lengths[1]
    alike = np.where(lengths[0] == lengths[1], 1.0, 0.0)
    cosine = np.divide(np.vecdot(a, b), product, out=alike, where=product > 0)
    return np.clip(1 - cosine, 0, 2)


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
