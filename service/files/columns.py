"""Outputs that keep the input's columns: .jsonl and .parquet, written part by part.

Notation: S tokens of one text, H hidden size, L layers, N heads, D output features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import numpy as np
import orjson

from service.files.fields import LENGTHS, ROW, ROWS, Array, Field, columns_of
from service.files.inputs import Place
from service.files.options import Kind
from service.files.parts import Part

Rows = tuple[list[Place], dict[str, Array]]
"""Rows of a part that have vectors, and the part's arrays."""


def with_rows(parts: Sequence[Part], places: Iterable[Place]) -> Iterator[Rows]:
    """Yield the rows and arrays of each part."""
    remaining = iter(places)
    for part in parts:
        rows = [next(remaining) for _ in range(part.start, part.end)]
        if part.specs:
            arrays = {name: part.array(name) for name in part.specs}
            arrays[ROW] = arrays[ROWS]
            kept = (arrays[ROWS] - part.start).tolist()
            yield [rows[place] for place in kept], arrays


def of_texts(field: Field, arrays: dict[str, Array]) -> Sequence[Array]:
    """Return a field's array for each text of a part."""
    values = arrays[field.name]
    return np.split(values, np.cumsum(arrays[LENGTHS])[:-1]) if field.ragged else list(values)


def write_jsonl(file: BinaryIO, kind: Kind, parts: Sequence[Part], places: Iterable[Place]) -> None:
    """Write a JSON object for each text, with the input's columns followed by the kind's fields."""
    fields = columns_of(kind)
    for rows, arrays in with_rows(parts, places):
        columns = [of_texts(field, arrays) for field in fields]
        for place, *values in zip(rows, *columns, strict=True):
            file.write(place.source.json(place.row))
            for field, value in zip(fields, values, strict=True):
                name = orjson.dumps(field.name)
                numbers = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
                file.write(b"," + name + b":" + numbers)
            file.write(b"}\n")
