"""Spearman's rank correlation. numpy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def spearman(one: ArrayLike, other: ArrayLike) -> float | None:
    """Pearson's correlation of the ranks of two rows of numbers, equal ones with their mean rank.

    Spearman 1904, "The proof and measurement of association between two things".

    Args:
        one: `[n]`.
        other: `[n]`.

    Returns:
        −1 … 1; None where all numbers of one are equal, so that there is no order.

    """
    a, b = (_centred_ranks(np.asarray(values, np.float64)) for values in (one, other))
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(np.clip(a @ b / scale, -1, 1)) if scale > 0 else None


def _centred_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks 1 … n less their mean."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    ranks: NDArray[np.float64] = (last - (count - 1) / 2)[place]
    return ranks - (len(values) + 1) / 2
