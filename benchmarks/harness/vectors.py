"""How alike vectors are that should be the same: nothing is timed that computes something else."""

from __future__ import annotations

import numpy as np


class OtherVectorsError(Exception):
    """Vectors that are not those they stand beside."""


def least_cosine(found: np.ndarray, expected: np.ndarray) -> float:
    """The least cosine of any row of `[text, feature]` to its counterpart."""
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    return float(((found * expected).sum(axis=1) / norms).min())


def check_vectors(name: str, found: np.ndarray, expected: np.ndarray, least: float) -> float:
    """The least cosine, if that is enough.

    Raises:
        OtherVectorsError: it is less, or not a number.

    """
    cosine = least_cosine(found, expected)
    if not cosine >= least:
        raise OtherVectorsError(f"{name} gives other vectors: cosine {cosine:.5f}")
    return cosine
