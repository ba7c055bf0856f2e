"""Pooled vectors in smaller types: `vector_type` of a request, and its ranges.

Notation: B texts, D features of a vector.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from model.artifact.vectors import TextVectors
from model.numerics.quantization import FLOAT32, WITH_RANGES, Quantization, VectorType
from service.engines.contract import Floats
from service.errors import Unprocessable
from service.inference.encoding import EncodeOptions, TextEncoding

Ranges = Sequence[Sequence[float]]
"""Lowest values, then highest values, of D features each."""
INLINE_FEATURES = 2**16
"""Maximum number of features that are converted on the event loop, in about 0.3 ms."""


def quantization_of(
    vector_type: VectorType,
    given: Ranges | None,
    options: EncodeOptions,
    vectors: TextVectors,
    last_layer: int,
) -> Quantization:
    """Return the conversion of the pooled vectors that a request asks for.

    Args:
        vector_type: requested type.
        given: ranges of the request; the artifact's when None.
        options: the other options of the vectors.
        vectors: vector pipeline of the artifact.
        last_layer: index of the last hidden state.

    Raises:
        Unprocessable: the ranges are invalid, or do not apply to the type; or the artifact has no
            ranges of such vectors.

    """
    if vector_type not in WITH_RANGES:
        if given is not None:
            raise Unprocessable(
                f"vector_ranges: vector_type {vector_type} has no ranges, int8 and uint8 have: "
                "leave it out"
            )
        return FLOAT32 if vector_type == "float32" else Quantization(vector_type)
    if given is not None:
        return Quantization(vector_type, _checked(given, options, vectors))
    if not options.own_vectors(vectors.pooling, last_layer):
        raise Unprocessable(
            f"vector_type {vector_type}: the artifact records ranges of the last hidden state by "
            "the checkpoint's pooling alone: give `vector_ranges` for another layer or pooling"
        )
    ranges = vectors.ranges(options.dimensions, options.normalize)
    if ranges is None:
        raise Unprocessable(
            f"vector_type {vector_type}: the artifact of a static embedding records no ranges: "
            "give `vector_ranges`"
        )
    return Quantization(vector_type, ranges)


def _checked(given: Ranges, options: EncodeOptions, vectors: TextVectors) -> Floats:
    """Return given ranges as `[2, D]`."""
    features = vectors.kept(options.pooling, options.dimensions)
    if sizes := [len(side) for side in given if len(side) != features]:
        raise Unprocessable(
            f"vector_ranges: a list has {sizes[0]} numbers, where the vectors have {features} "
            "features"
        )
    with np.errstate(over="ignore"):
        ranges = np.array(given, np.float64).astype(np.float32)
    valid = np.isfinite(ranges).all(axis=0) & (ranges[0] <= ranges[1])
    if not valid.all():
        feature = int(valid.argmin())
        low, high = given[0][feature], given[1][feature]
        raise Unprocessable(
            f"vector_ranges: feature {feature} has {low} … {high}: the lowest value, then the "
            "highest, both in the range of float32, are needed"
        )
    return ranges


async def quantized(
    encodings: Sequence[TextEncoding], quantization: Quantization
) -> Sequence[TextEncoding]:
    """Return the encodings with pooled vectors, of texts and of spans, in another type.

    Raises:
        Unprocessable: a feature exceeds the type.

    """
    if quantization.vector_type == "float32":
        return encodings
    pooled = [array for own in encodings for array in _pooled(own).values()]
    if sum(array.size for array in pooled) <= INLINE_FEATURES:
        return _quantized(encodings, quantization)
    return await asyncio.to_thread(_quantized, encodings, quantization)


def _quantized(
    encodings: Sequence[TextEncoding], quantization: Quantization
) -> Sequence[TextEncoding]:
    """Convert the pooled vectors of all texts at once; see `quantized`."""
    named = [_pooled(encoding) for encoding in encodings]
    arrays = [array for own in named for array in own.values()]
    flat = [array.reshape(-1, array.shape[-1]) for array in arrays]
    try:
        rows = quantization(np.concatenate(flat))
    except OverflowError as error:
        largest = [max(np.abs(array).max(initial=0) for array in own.values()) for own in named]
        raise Unprocessable(
            f"vector_type {quantization.vector_type}: inputs[{int(np.argmax(largest))}]: {error}: "
            "ask for float32, or `normalize`"
        ) from None
    parts = np.split(rows, np.cumsum([len(array) for array in flat])[:-1])
    shaped = iter(
        part.reshape(*array.shape[:-1], part.shape[-1])
        for array, part in zip(arrays, parts, strict=True)
    )
    for encoding, own in zip(encodings, named, strict=True):
        encoding.converted = {name: next(shaped) for name in own}
    return encodings


def _pooled(encoding: TextEncoding) -> dict[str, Floats]:
    """Return the pooled vectors of a text and of its spans by their names in replies."""
    named = {"pooled": encoding.pooled, "span_vectors": encoding.spans}
    return {name: array for name, array in named.items() if array is not None}
