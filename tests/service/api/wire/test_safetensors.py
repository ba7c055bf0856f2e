"""Weights as float16: numpy's own conversion is the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.api.wire.safetensors import float16_weights


def ties() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return every float16 from 0 to 1, the midpoints between neighbours, and adjacent floats."""
    halves = np.arange(0, 0x3C01, dtype=np.uint16).view(np.float16).astype(np.float32)
    points = np.concatenate([halves, (halves[1:] + halves[:-1]) / 2])
    above, below = (np.nextafter(points, np.float32(end)) for end in (2, 0))
    return np.clip(np.concatenate([points, above, below]), 0, 1)


@pytest.mark.parametrize(
    "weights",
    [
        ties(),
        np.random.default_rng(0).random((3, 200, 200), np.float32),
        np.random.default_rng(1).random(10**5, np.float32) ** 40,
        np.zeros((2, 1, 1), np.float32),
        np.ones(1, np.float32),
    ],
    ids=["ties", "ordinary", "tiny", "zero", "one"],
)
def test_it_is_what_numpy_gives(weights: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    expected = weights.astype(np.float16)
    np.testing.assert_array_equal(float16_weights(weights), expected, strict=True)
