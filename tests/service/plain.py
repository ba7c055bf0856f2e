"""Reference statistics of attention maps, from the definitions, row by row, in float64.

Notation: S tokens of a text, L layers, N heads.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
NAMES = ("entropy", "distance", "confidence", "cls", "sep", "self", "previous", "next")


def largest(maps: Array, k: int) -> tuple[Array, Array]:
    """Return indices and values `[…, S, min(k, S)]` of each row's largest weights; ties: first."""
    indices = np.argsort(-maps, axis=-1, kind="stable")[..., :k].copy()
    return indices, np.take_along_axis(maps, indices, axis=-1)


def of_head(weights: Array, separators: Collection[int]) -> dict[str, float]:
    """Return the statistics of one map `[S, S]`."""
    size = len(weights)
    rows = []
    for query, row in enumerate(weights.astype(np.float64)):
        seen = row[row > 0]
        rows.append(
            {
                "entropy": -(seen * np.log(seen)).sum(),
                "distance": row @ np.abs(query - np.arange(size)),
                "confidence": max(row),
                "cls": row[0],
                "sep": sum(row[key] for key in separators),
                "self": row[query],
                "previous": row[query - 1] if query else None,
                "next": row[query + 1] if query + 1 < size else None,
            }
        )
    found = {}
    for name in NAMES:
        values = [row[name] for row in rows if row[name] is not None]
        found[name] = float(sum(values) / len(values)) if values else 0.0
    return found


def statistics(maps: Array, separators: Collection[int]) -> dict[str, Array]:
    """Return statistics `[layers, heads]` by name, of maps `[layers, heads, S, S]`."""
    found = [[of_head(head, separators) for head in layer] for layer in maps]
    return {name: np.array([[head[name] for head in layer] for layer in found]) for name in NAMES}


def cross_statistics(maps: Array, separators: Collection[int]) -> dict[str, Array]:
    """Return statistics `[layers, heads]` by name, of cross-attention `[layers, heads, T, S]`."""
    rows = maps.astype(np.float64)
    logarithms = np.log(rows, out=np.zeros_like(rows), where=rows > 0)
    return {
        "entropy": -(rows * logarithms).sum(-1).mean(-1),
        "confidence": np.sort(rows, axis=-1)[..., -1].mean(-1),
        "cls": rows[..., 0].mean(-1),
        "sep": sum((rows[..., key].mean(-1) for key in separators), np.zeros(rows.shape[:2])),
    }


def rollout(maps: Array) -> Array:
    """`[S, S]` of the maps of all layers and heads `[L, N, S, S]`: rows of (A + I) / 2 sum to 1."""
    identity = np.eye(maps.shape[-1])
    product = identity
    for layer in maps.astype(np.float64):
        product = (sum(layer) / len(layer) + identity) / 2 @ product
    return product


def norms(maps: Array, products: Array) -> Array:
    """‖a · f‖ `[L, N, S, S]` of maps of some layers and heads, and products `[L, S, N, N]`."""
    squares = np.einsum("lknn->lnk", products.astype(np.float64))
    return np.einsum("lnqk,lnk->lnqk", maps.astype(np.float64), np.sqrt(squares))


def norm_rollout(maps: Array, products: Array) -> Array:
    """`[S, S]` of all layers and heads: rows of N / 2, which sum to 1/2, and of I / 2.

    N[q, k] is the norm of the sum over heads, Σ_g Σ_h a_g a_h ⟨f_g, f_h⟩ in a square root.
    """
    identity = np.eye(maps.shape[-1])
    product = identity
    for layer, of_values in zip(maps.astype(np.float64), products.astype(np.float64), strict=True):
        square = sum(
            layer[g] * layer[h] * of_values[:, g, h]
            for g in range(len(layer))
            for h in range(len(layer))
        )
        norm = np.sqrt(square)
        product = (norm / norm.sum(axis=-1, keepdims=True) + identity) / 2 @ product
    return product


def turned(one: Array, other: Array) -> float:
    """Return 1 − cosine."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    return float(1 - one @ other / (np.sqrt(one @ one) * np.sqrt(other @ other)))
