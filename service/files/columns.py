"""Outputs that keep the input's columns: .jsonl and .parquet, put together part by part.

Notation: S tokens of one text, H hidden size, L layers, N heads, D features that are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import numpy as np
import orjson

from service.files.fields import FIELDS, LENGTHS, ROWS, Array, Field
from service.files.inputs import Place
from service.files.options import Kind
from service.files.parts import Part

Rows = tuple[list[Place], dict[str, Array]]
"""The rows of a part that have vectors, and its arrays."""


def with_rows(parts: Sequence[Part], places: Iterable[Place]) -> Iterator[Rows]:
    """Each part with its rows of the input."""
    rest = iter(places)
    for part in parts:
        found = [next(rest) for _ in range(part.start, part.end)]
        if part.specs:
            arrays = {name: part.array(name) for name in part.specs}
            kept = (arrays[ROWS] - part.start).tolist()
            yield [found[place] for place in kept], arrays


def of_texts(field: Field, arrays: dict[str, Array]) -> Sequence[Array]:
    """A field's array of each text of a part."""
    values = arrays[field.name]
    return np.split(values, np.cumsum(arrays[LENGTHS])[:-1]) if field.ragged else list(values)


def write_jsonl(file: BinaryIO, kind: Kind, parts: Sequence[Part], places: Iterable[Place]) -> None:
    """An object a text: the input's columns, and the kind's fields after them."""
    fields = FIELDS[kind]
    for rows, arrays in with_rows(parts, places):
        columns = [of_texts(field, arrays) for field in fields]
        for place, *values in zip(rows, *columns, strict=True):
            file.write(place.source.json(place.row))
            for field, value in zip(fields, values, strict=True):
                name = orjson.dumps(field.name)
                numbers = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
                file.write(b"," + name + b":" + numbers)
            file.write(b"}\n")
