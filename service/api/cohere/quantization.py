"""Unit vectors in the types of Cohere's `embedding_types`, as Jina and Voyage also offer.

Cohere has not published the range of its 8-bit types. Here every vector has the same range,
−1 … 1, so that vectors of different requests can be compared: int8 is round(127 x), and uint8 is
int8 + 128. In binary vectors, the first of eight features is the most significant bit of a byte.

Notation: D features of a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.api.drop_in.embedding import BASE64_BYTES_PER_FLOAT
from service.api.wire.json_pieces import vector_pieces
from service.api.wire.media import JSON_BYTES_PER_FLOAT, Unwritten
from service.engines.contract import Floats

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
INTEGER_BYTES = 5
"""Maximum bytes of an 8-bit number and its comma in JSON."""
FEATURES_PER_BYTE = 8
_HIGHEST = 127
_ZERO = 128


def int8(vector: Floats) -> NDArray[np.int8]:
    """Quantise a unit vector to int8, `[D]` of −127 … 127."""
    scaled = np.clip(np.rint(_HIGHEST * vector), -_HIGHEST, _HIGHEST)
    return np.ascontiguousarray(scaled, np.int8)


def uint8(vector: Floats) -> NDArray[np.uint8]:
    """Quantise a unit vector to uint8, `[D]` of 1 … 255."""
    return (int8(vector).astype(np.int16) + _ZERO).astype(np.uint8)


def ubinary(vector: Floats) -> NDArray[np.uint8]:
    """Pack the signs of a vector into `[D/8]` bytes; a bit is set where the feature is above 0."""
    return np.packbits(vector > 0)


def binary(vector: Floats) -> NDArray[np.int8]:
    """Return `ubinary` − 128, as `[D/8]` signed bytes."""
    return (ubinary(vector).astype(np.int16) - _ZERO).astype(np.int8)


@dataclass(frozen=True)
class VectorForm:
    """Conversion and serialisation of one vector type."""

    convert: Callable[[Floats], NDArray[np.generic]]
    """Function from a vector `[D]` to its numbers in this type."""
    feature_bytes: float
    """Predicted bytes of a feature in JSON."""
    as_base64: bool = False

    def pieces(self, vector: Floats) -> Unwritten:
        """Return a vector `[D]` as JSON."""
        return vector_pieces(self.convert(vector), as_base64=self.as_base64)


def _same(vector: Floats) -> Floats:
    return vector


FORMS: dict[EmbeddingType, VectorForm] = {
    "float": VectorForm(_same, JSON_BYTES_PER_FLOAT),
    "int8": VectorForm(int8, INTEGER_BYTES),
    "uint8": VectorForm(uint8, INTEGER_BYTES),
    "binary": VectorForm(binary, INTEGER_BYTES / 8),
    "ubinary": VectorForm(ubinary, INTEGER_BYTES / 8),
    "base64": VectorForm(_same, BASE64_BYTES_PER_FLOAT, as_base64=True),
}
