"""Vectors in smaller types, as sentence-transformers' `quantize_embeddings` computes them.

Notation: D features of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
VectorType = Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"]
VECTOR_TYPES: tuple[VectorType, ...] = get_args(VectorType)
WITH_RANGES: tuple[VectorType, ...] = ("int8", "uint8")
"""Types whose buckets depend on the range of each feature."""
FEATURES_PER_BYTE = 8
_BUCKETS = 255
_ZERO = 128


@dataclass(frozen=True)
class Quantization:
    """Function from float32 vectors to one of `VECTOR_TYPES`."""

    vector_type: VectorType = "float32"
    ranges: Floats | None = None
    """Lowest and highest value of each feature, `[2, D]` or `[2, 1]`; for `WITH_RANGES` only."""

    def __call__(self, vectors: Floats) -> NDArray[np.generic]:
        """Convert vectors `[…, D]`.

        int8 and uint8 are the index of the feature's bucket, of 256 between its lowest and highest
        value: floor(255 (x − low) / (high − low)), clipped to 0 … 255, and for int8 minus 128.
        Binary vectors have a bit for each feature above 0, the first of eight the most significant;
        int8 bytes of `binary` are those of `ubinary` minus 128, and zeros fill up the last byte.

        The result is `[…, D]`, or `[…, ⌈D / 8⌉]` for binary vectors.

        Raises:
            OverflowError: a feature is beyond the largest float16, 65504.

        """
        match self.vector_type:
            case "float32":
                return vectors
            case "float16":
                return _float16(vectors)
            case "binary" | "ubinary":
                return self._signed(np.packbits(vectors > 0, axis=-1))
        assert self.ranges is not None  # noqa: S101
        low, high = self.ranges
        steps = (high - low) / np.float32(_BUCKETS)
        buckets = np.floor((vectors - low) / np.where(steps == 0, np.float32(1), steps))
        return self._signed(np.clip(buckets, 0, _BUCKETS).astype(np.uint8))

    def _signed(self, values: NDArray[np.uint8]) -> NDArray[np.generic]:
        """Return bytes, minus 128 for the signed types."""
        if self.vector_type in ("int8", "binary"):
            return (values.astype(np.int16) - _ZERO).astype(np.int8)
        return values


FLOAT32 = Quantization()


def ranges_of(vectors: Sequence[Floats]) -> Floats:
    """Return the lowest and highest value of each feature of at least one vector, `[2, D]`."""
    stacked = np.stack(vectors)
    return np.stack([stacked.min(axis=0), stacked.max(axis=0)])


def _float16(vectors: Floats) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        halves = vectors.astype(np.float16)
    if np.isinf(halves).any():
        raise OverflowError("a feature is beyond the largest float16, 65504")
    return halves
