"""Unit vectors in the types of Cohere's `embedding_types`, some of which Jina has too.

Cohere has not published the range of its 8-bit types. Here every feature has the same range,
−1 … 1, so that vectors of different requests and models can be compared: int8 is 127 x, rounded,
and uint8 is int8 + 128.

Notation: D features of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from model.numerics.quantization import Quantization
from service.api.drop_in.embedding import BASE64_BYTES_PER_FLOAT
from service.api.wire.json_pieces import vector_pieces
from service.api.wire.media import JSON_BYTES_PER_FLOAT, Unwritten
from service.engines.contract import Floats

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
INTEGER_BYTES = 5
"""Maximum bytes of an 8-bit number and its comma in JSON."""
_UNIT = np.array([[-128.5], [126.5]], np.float32) / np.float32(127)
"""Range of features whose 256 buckets are the integers nearest to 127 x."""


@dataclass(frozen=True)
class VectorForm:
    """Conversion and serialisation of one vector type."""

    convert: Quantization
    feature_bytes: float
    """Predicted bytes of a feature in JSON."""
    as_base64: bool = False

    def pieces(self, vector: Floats) -> Unwritten:
        """Return a vector `[D]` as JSON."""
        return vector_pieces(self.convert(vector), as_base64=self.as_base64)


FORMS: dict[EmbeddingType, VectorForm] = {
    "float": VectorForm(Quantization(), JSON_BYTES_PER_FLOAT),
    "int8": VectorForm(Quantization("int8", _UNIT), INTEGER_BYTES),
    "uint8": VectorForm(Quantization("uint8", _UNIT), INTEGER_BYTES),
    "binary": VectorForm(Quantization("binary"), INTEGER_BYTES / 8),
    "ubinary": VectorForm(Quantization("ubinary"), INTEGER_BYTES / 8),
    "base64": VectorForm(Quantization(), BASE64_BYTES_PER_FLOAT, as_base64=True),
}
