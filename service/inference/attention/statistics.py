"""What a head does, as numbers: pure functions of attention maps.

Notation: `[S]` tokens of one text and `[T]` of its target, `[N]` heads, `[H]` hidden size, `…` any
leading axes (layers, heads). A map is float32 `[S, S]`, queries × keys, its weights ≥ 0 and every
row summing to 1; a decoder's is `[T, T]`, one of cross-attention `[T, S]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Maps = NDArray[np.float32]
Indices = NDArray[np.int32]

STATISTICS = ("entropy", "distance", "confidence", "cls", "sep", "self", "previous", "next")
CROSS_STATISTICS = ("entropy", "confidence", "cls", "sep")
"""Those that compare no query's position with a key's, which are of two texts."""
BLOCK_WEIGHTS = 1 << 18
"""Temporaries hold this many weights (one head of 512 tokens): they stay in the cache."""
SMALLEST = np.finfo(np.float32).tiny
FEW = 32
"""Up to so many keys are found faster one by one than by sorting."""
INDEX_BITS = np.uint64(32)
INDEX_MASK = np.uint64(0xFFFFFFFF)


def top_k(maps: Maps, k: int) -> tuple[Indices, Maps]:
    """The k keys of each query row with the largest weights, as indices and values.

    Shape: `[…, S, S]` → int32 and float32 `[…, S, min(k, S)]`, largest first; of equal weights the
    lower index first.
    """
    k = min(k, maps.shape[-1])
    indices = np.empty((*maps.shape[:-1], k), np.int32)
    values = np.empty((*maps.shape[:-1], k), np.float32)
    find = one_by_one if k <= FEW else sorted_keys
    size = maps.shape[-1]
    rows = maps.reshape(-1, size), indices.reshape(-1, k), values.reshape(-1, k)
    for block, best, weights in blocks(BLOCK_WEIGHTS // size, *rows):
        best[...] = find(block, k)
        weights[...] = np.take_along_axis(block, best, axis=-1)
    return indices, values


def one_by_one(rows: Maps, k: int) -> NDArray[np.integer]:
    """Find the largest of every row and strike it out, k times: `[R, S]` → `[R, k]`."""
    rest = rows.copy()
    every = np.arange(len(rows))
    best = np.empty((len(rows), k), np.intp)
    for place in range(k):
        best[:, place] = rest.argmax(axis=-1)
        rest[every, best[:, place]] = -1
    return best


def sorted_keys(rows: Maps, k: int) -> NDArray[np.integer]:
    """Sort integers that ascend as weights fall and, among equals, as indices rise.

    Floats ≥ 0 are ordered as their bits are: those fill a key's upper half, inverted, and the index
    its lower one. No two are equal, so that a partial sort has one outcome. `[R, S]` → `[R, k]`.
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
    """Means over all query tokens of what each head's rows do.

    `entropy` in nats; `distance` Σ_k a[q, k]·|q − k| in tokens; `confidence` the row's largest
    weight; `cls` the weight on token 0; `sep` the summed weight on the tokens at `separators`;
    `self`; `previous` and `next` over the queries that have such a token, 0 where none has (S = 1).
    Of cross-attention there are only `CROSS_STATISTICS`.

    Shape: `[…, S, S]` → `[…]` for each name.
    """
    found = {name: np.empty(maps.shape[:-2], np.float32) for name in names}
    queries, keys = maps.shape[-2:]
    heads = maps.reshape(-1, queries, keys), *(array.reshape(-1) for array in found.values())
    columns, distances = list(separators), None
    if "distance" in names:
        positions = np.arange(keys, dtype=np.float64)
        distances = np.abs(positions[:, None] - positions)
    for block, *results in blocks(BLOCK_WEIGHTS // (queries * keys), *heads):
        means = row_means(block, columns)
        if distances is not None:
            means |= place_means(block, distances)
        for result, name in zip(results, found, strict=True):
            result[...] = means[name]
    return found


def row_means(maps: Maps, separators: list[int]) -> dict[str, NDArray[np.float64]]:
    """The statistics of a row's weights alone: `[N, T, S]` → `[N]` each."""
    logarithms = np.maximum(maps, SMALLEST)  # 0·log 0 = 0
    np.log(logarithms, out=logarithms)
    return {
        "entropy": 0 - mean(np.vecdot(maps, logarithms)),  # never −0
        "confidence": mean(maps.max(axis=-1)),
        "cls": mean(maps[..., 0]),
        "sep": mean(maps[..., separators].sum(axis=-1, dtype=np.float64)),
    }


def place_means(maps: Maps, distances: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """The statistics of where the keys are from the query: `[N, S, S]` → `[N]` each."""
    return {
        "distance": mean(np.vecdot(maps, distances)),
        "self": mean(diagonal(maps, 0)),
        "previous": mean(diagonal(maps, -1)),
        "next": mean(diagonal(maps, 1)),
    }


def mean(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Mean over the last axis, accumulated in float64; 0 where the axis is empty."""
    return values.sum(axis=-1, dtype=np.float64) / max(values.shape[-1], 1)


def diagonal(maps: Maps, offset: int) -> Maps:
    """Weights of each query on the token `offset` places to its right: `[…, S − |offset|]`."""
    return np.diagonal(maps, offset, axis1=-2, axis2=-1)


def blocks(length: int, *arrays: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """Views of a few entries of all `arrays` at a time: `length` along their first axis, or one."""
    for start in range(0, len(arrays[0]), max(1, length)):
        yield tuple(array[start : start + max(1, length)] for array in arrays)


def rollout_step(previous: Maps | None, maps: Maps) -> Maps:
    """Attention rollout after one more layer (Abnar & Zuidema 2020).

    The mean over a layer's heads plus the identity, rows renormalised, times the rollout of the
    layers below it: R_l = Â_l · R_{l−1} (https://arxiv.org/abs/2005.00928).

    Shape: all heads of the layer, `[N, S, S]`, and the rollout before it (None before the first
    layer) → `[S, S]`.
    """
    mixed = maps.mean(axis=0)
    mixed[np.diag_indices_from(mixed)] += 1
    mixed /= mixed.sum(axis=-1, keepdims=True)
    return mixed if previous is None else mixed @ previous


def shift(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """How far vectors turned: 1 − cosine, from 0 to 2.

    A vector of zeros has no direction: it is 0 from another one of zeros and 1 from any other.

    Shape: `[…, H]` twice → `[…]`.
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(a, axis=-1), np.linalg.norm(b, axis=-1)
    product = lengths[0] * lengths[1]
    alike = np.where(lengths[0] == lengths[1], 1.0, 0.0)
    cosine = np.divide(np.vecdot(a, b), product, out=alike, where=product > 0)
    return np.clip(1 - cosine, 0, 2)
