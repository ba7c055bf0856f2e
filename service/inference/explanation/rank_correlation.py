"""Spearman's rank correlation, with numpy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def spearman(one: ArrayLike, other: ArrayLike) -> float | None:
    """Return Spearman's ρ: Pearson's correlation of the ranks; ties get their mean rank.

    Spearman 1904, "The proof and measurement of association between two things".

    Args:
        one: `[n]`.
        other: `[n]`.

    Returns:
        −1 … 1; None if all numbers of either row are equal, which have no order.

    """
    a, b = (_centred_ranks(np.asarray(values, np.float64)) for values in (one, other))
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(np.clip(a @ b / scale, -1, 1)) if scale > 0 else None


def _centred_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks 1 … n minus their mean."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    ranks: NDArray[np.float64] = (last - (count - 1) / 2)[place]
    return ranks - (len(values) + 1) / 2
