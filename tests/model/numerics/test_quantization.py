"""Types of vectors against sentence-transformers' `quantize_embeddings`."""

from __future__ import annotations

import numpy as np
import pytest
from sentence_transformers.util import quantize_embeddings

from model.numerics.quantization import (
    VECTOR_TYPES,
    WITH_RANGES,
    Quantization,
    VectorType,
    ranges_of,
)

VECTORS = np.random.default_rng(0).standard_normal((60, 21)).astype(np.float32)
VECTORS[:, 4] = 0.5  # a feature without a range
CALIBRATION, OTHERS = VECTORS[:20], VECTORS[20:]


@pytest.mark.parametrize("name", [name for name in VECTOR_TYPES if name != "float16"])
def test_types_are_sentence_transformers(name: VectorType) -> None:
    """Vectors outside of the ranges are clipped; 21 features of a bit are three bytes."""
    ranges = ranges_of([*CALIBRATION]) if name in WITH_RANGES else None
    found = Quantization(name, ranges)(OTHERS)
    expected = quantize_embeddings(OTHERS, name, calibration_embeddings=CALIBRATION)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    several = Quantization(name, ranges)(OTHERS.reshape(8, 5, 21))
    np.testing.assert_array_equal(several, found.reshape(8, 5, -1))


def test_float16_is_rounded_or_refused() -> None:
    found = Quantization("float16")(np.array([1 / 3, 65504], np.float32))
    assert found.dtype == np.float16
    assert found.tolist() == [0.333251953125, 65504]
    with pytest.raises(OverflowError, match="beyond the largest float16"):
        Quantization("float16")(np.array([0, -65520], np.float32))
