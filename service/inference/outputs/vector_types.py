"""Pooled vectors in smaller types: `vector_type` of a request, and its ranges.

Notation: B texts, D features of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model.artifact.vectors import TextVectors
from model.numerics.quantization import FLOAT32, WITH_RANGES, Quantization
from service.engines.contract import Floats
from service.errors import Unprocessable
from service.inference.encoding import EncodeOptions
from service.inference.outputs.field import TextArrays


def quantization_of(options: EncodeOptions, vectors: TextVectors, last_layer: int) -> Quantization:
    """Return the conversion of the pooled vectors to the requested type.

    Raises:
        Unprocessable: the ranges are invalid, or do not apply to the type; or the artifact has no
            ranges of such vectors.

    """
    vector_type, given = options.vector_type, options.vector_ranges
    if vector_type not in WITH_RANGES:
        if given is not None:
            raise Unprocessable(
                f"vector_ranges: vector_type {vector_type} has no ranges, int8 and uint8 have: "
                "leave it out"
            )
        return FLOAT32 if vector_type == "float32" else Quantization(vector_type)
    if given is not None:
        return Quantization(
            vector_type, _checked(given, vectors.kept(options.pooling, options.dimensions))
        )
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


def _checked(given: Sequence[Sequence[float]], features: int) -> Floats:
    """Return given ranges as `[2, D]`."""
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


def convert(
    texts: Sequence[TextArrays], names: Sequence[str], quantization: Quantization
) -> Sequence[TextArrays]:
    """Convert the vectors with these names, of all texts at once, and return the texts."""
    arrays = [own[name] for own in texts for name in names]
    flat = [array.reshape(-1, array.shape[-1]) for array in arrays]
    try:
        rows = quantization(np.concatenate(flat))
    except OverflowError as error:
        largest = [max(np.abs(own[name]).max(initial=0) for name in names) for own in texts]
        raise Unprocessable(
            f"vector_type {quantization.vector_type}: inputs[{int(np.argmax(largest))}]: {error}: "
            "ask for float32, or `normalize`"
        ) from None
    parts = iter(np.split(rows, np.cumsum([len(array) for array in flat])[:-1]))
    for own in texts:
        for name in names:
            part = next(parts)
            own[name] = part.reshape(*own[name].shape[:-1], part.shape[-1])
    return texts
