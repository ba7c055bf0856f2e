"""Unit vectors in the types of Cohere's `embedding_types`.

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
import orjson
from numpy.typing import NDArray

from service.api.drop_in.embedding import BASE64_BYTES_PER_FLOAT, vector_json
from service.api.wire.media import JSON_BYTES_PER_FLOAT
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


def _integers(vector: NDArray[Any]) -> bytes:
    return orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY)


@dataclass(frozen=True)
class VectorForm:
    """How vectors of a type are written."""

    json: Callable[[Any], bytes]
    """Of a vector `[D]`."""
    feature_bytes: float
    """Predicted of a feature."""


FORMS: dict[EmbeddingType, VectorForm] = {
    "float": VectorForm(vector_json, JSON_BYTES_PER_FLOAT),
    "int8": VectorForm(lambda vector: _integers(int8(vector)), INTEGER_BYTES),
    "uint8": VectorForm(lambda vector: _integers(uint8(vector)), INTEGER_BYTES),
    "binary": VectorForm(lambda vector: _integers(binary(vector)), INTEGER_BYTES / 8),
    "ubinary": VectorForm(lambda vector: _integers(ubinary(vector)), INTEGER_BYTES / 8),
    "base64": VectorForm(
        lambda vector: vector_json(vector, as_base64=True), BASE64_BYTES_PER_FLOAT
    ),
}
