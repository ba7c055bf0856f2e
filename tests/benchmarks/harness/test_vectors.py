"""Vectors that differ raise an error before anything is timed."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.harness.vectors import OtherVectorsError, check_vectors, least_cosine

VECTORS = np.array([[1.0, 0.0], [3.0, 4.0]])


def test_the_least_cosine():
    turned = np.array([[2.0, 0.0], [4.0, 3.0]])
    assert least_cosine(turned, VECTORS) == pytest.approx(24 / 25)
    assert check_vectors("it", turned, VECTORS, 0.95) == pytest.approx(24 / 25)


@pytest.mark.parametrize("found", [VECTORS[::-1], VECTORS * np.nan])
def test_other_vectors(found):
    with pytest.raises(OtherVectorsError, match="it gives other vectors: cosine"):
        check_vectors("it", found, VECTORS, 0.999)
