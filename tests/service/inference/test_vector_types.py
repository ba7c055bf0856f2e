"""Options of `vector_type`, and the conversion of a request's vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import CALIBRATION, TextVectors
from model.numerics.quantization import Quantization
from service.errors import Unprocessable
from service.inference import vector_types
from service.inference.encoding import EncodeOptions, TextEncoding
from service.inference.vector_types import quantization_of, quantized

RANGES = [[-1.0, -2.0, 0.0], [1.0, 2.0, 0.0]]
STATIC = TextVectors(SentenceConfig(max_length=9), 3, {})
VECTORS = TextVectors(SentenceConfig(max_length=9), 3, {CALIBRATION: np.array(RANGES, np.float32)})


def options(**fields: Any) -> EncodeOptions:
    return EncodeOptions(**({"layer": 2, "tokens": False, "pooled": True} | fields))


def test_ranges_are_the_requests_or_the_artifacts() -> None:
    given = quantization_of("int8", [[0.0, 0.0], [1.0, 1.0]], options(dimensions=2), STATIC, 2)
    assert given.ranges is not None
    assert given.ranges.tolist() == [[0, 0], [1, 1]]
    recorded = quantization_of("uint8", None, options(), VECTORS, 2)
    assert recorded.ranges is not None
    assert recorded.ranges.tolist() == RANGES
    assert quantization_of("binary", None, options(layer=0), STATIC, 2).ranges is None


@pytest.mark.parametrize(
    ("vector_type", "ranges", "fields", "vectors", "problem"),
    [
        ("float16", RANGES, {}, VECTORS, "vector_type float16 has no ranges"),
        ("int8", None, {"layer": 1}, VECTORS, "another layer or pooling"),
        ("int8", None, {"layers": (1, 2)}, VECTORS, "another layer or pooling"),
        ("uint8", None, {"pooling": "max"}, VECTORS, "another layer or pooling"),
        ("int8", None, {}, STATIC, "records no ranges: give `vector_ranges`"),
        ("int8", RANGES, {"dimensions": 2}, VECTORS, "has 3 numbers, where the vectors have 2"),
        ("int8", [[0, 1, 0], [0, 0, 0]], {}, VECTORS, "feature 1 has 1 … 0"),
        ("int8", [[0, 0, 0], [0, 0, 1e39]], {}, VECTORS, "feature 2 has 0 … 1e"),
    ],
)
def test_what_does_not_fit_is_refused(
    vector_type: Any, ranges: Any, fields: dict[str, Any], vectors: TextVectors, problem: str
) -> None:
    with pytest.raises(Unprocessable, match=problem):
        quantization_of(vector_type, ranges, options(**fields), vectors, 2)


@pytest.mark.anyio
@pytest.mark.parametrize("inline", [0, 10**6])
async def test_vectors_are_converted_in_their_order(
    monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    monkeypatch.setattr(vector_types, "INLINE_FEATURES", inline)
    rows = np.array([[1, -1, 1], [-1, 1, 70000]], np.float32)
    encodings = [TextEncoding(None, row, spans=np.stack([row, -row])) for row in rows]
    found = await quantized(encodings, Quantization("ubinary"))
    assert [one.arrays["pooled"].tolist() for one in found] == [[0b10100000], [0b01100000]]
    assert found[0].arrays["span_vectors"].tolist() == [[0b10100000], [0b01000000]]
    assert await quantized(encodings, Quantization()) == encodings
    with pytest.raises(Unprocessable, match=r"vector_type float16: inputs\[1\]: a feature is beyo"):
        await quantized(encodings, Quantization("float16"))
