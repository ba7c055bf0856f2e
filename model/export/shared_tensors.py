"""Tensors that a graph beside has already: named there instead of being written again.

Format: `external_data` of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, a file's name, an
offset and a length. Runtimes map such files into memory, so what is there once is in memory once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import onnx
from onnx.external_data_helper import ExternalDataInfo, set_external_data

LEAST_BYTES = 1024
"""Of a tensor that is outside of its graph."""


class Place(NamedTuple):
    """Where a tensor's bytes are."""

    location: str
    offset: int
    length: int


def places_of(graphs: Iterable[Path]) -> dict[bytes, Place]:
    """The tensors of graphs that are outside of them, by the SHA-256 of their bytes."""
    found = {}
    for path in graphs:
        for tensor in onnx.load(path, load_external_data=False).graph.initializer:
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                continue
            info = ExternalDataInfo(tensor)
            place = Place(info.location, info.offset or 0, info.length or 0)
            with (path.parent / place.location).open("rb") as file:
                file.seek(place.offset)
                found[hashlib.sha256(file.read(place.length)).digest()] = place
    return found


def refer(model: onnx.ModelProto, places: dict[bytes, Place]) -> None:
    """Replace the bytes of each large tensor that is there already by its place."""
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) < LEAST_BYTES:
            continue
        place = places.get(hashlib.sha256(tensor.raw_data).digest())
        if place is not None:
            set_external_data(tensor, *place)
            tensor.ClearField("raw_data")
