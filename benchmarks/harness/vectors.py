"""Check that systems compute the same vectors before they are timed."""

from __future__ import annotations

import numpy as np


class OtherVectorsError(Exception):
    """Vectors that differ from the expected vectors."""


def least_cosine(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the smallest cosine of any row `[…, feature]` with its counterpart."""
    norms = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
    return float(((found * expected).sum(axis=-1) / norms).min())


def check_vectors(name: str, found: np.ndarray, expected: np.ndarray, least: float) -> float:
    """Return the smallest cosine if it is large enough.

    Raises:
        OtherVectorsError: the cosine is below `least`, or not a number.

    """
    cosine = least_cosine(found, expected)
    if not cosine >= least:
        raise OtherVectorsError(f"{name} gives other vectors: cosine {cosine:.5f}")
    return cosine
