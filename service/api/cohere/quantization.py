"""Unit vectors in the types of Cohere's `embedding_types`, which Jina and Voyage have too.

How Cohere finds the range of its 8-bit types is not published. Here it is the same for every
vector, −1 … 1, so that vectors of different requests can be compared: int8 is round(127 x), and
uint8 lies 128 above it. Of the bits, the first feature's is the highest of its byte.

Notation: D features of a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from service.api.drop_in.embedding import BASE64_BYTES_PER_FLOAT
from service.api.wire.json_pieces import vector_pieces
from service.api.wire.media import JSON_BYTES_PER_FLOAT, Unwritten
from service.engines.contract import Floats

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
INTEGER_BYTES = 5
"""Of an 8-bit number in JSON with its comma."""
FEATURES_PER_BYTE = 8
_HIGHEST = 127
_ZERO = 128


def int8(vector: Floats) -> NDArray[np.int8]:
    """`[D]`, each −127 … 127."""
    scaled = np.clip(np.rint(_HIGHEST * vector), -_HIGHEST, _HIGHEST)
    return np.ascontiguousarray(scaled, np.int8)


def uint8(vector: Floats) -> NDArray[np.uint8]:
    """`[D]`, each 1 … 255."""
    return (int8(vector).astype(np.int16) + _ZERO).astype(np.uint8)


def ubinary(vector: Floats) -> NDArray[np.uint8]:
    """`[D/8]`, a bit a feature: whether it is above 0."""
    return np.packbits(vector > 0)


def binary(vector: Floats) -> NDArray[np.int8]:
    """`[D/8]`, 128 below `ubinary`."""
    return (ubinary(vector).astype(np.int16) - _ZERO).astype(np.int8)


@dataclass(frozen=True)
class VectorForm:
    """How vectors of a type are written."""

    convert: Callable[[Floats], NDArray[Any]]
    """Numbers of a vector `[D]`."""
    feature_bytes: float
    """Bytes predicted of a feature."""
    as_base64: bool = False

    def pieces(self, vector: Floats) -> Unwritten:
        """A vector `[D]` as JSON."""
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
