"""References to tensors in other files, instead of further copies.

A graph names such tensors as external data (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto:
a file's name, an offset and a length), in the data of another graph or in a safetensors file, whose
tensors are raw bytes at known offsets too. A safetensors file names them in its metadata
(`model.artifact.mapped`). Runtimes map such files into memory, so that each tensor is in memory
once.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.external_data_helper import ExternalDataInfo, set_external_data
from safetensors.torch import save_file

from model.artifact.integrity import writing
from model.artifact.mapped import SHARED, Reference, read_header

LEAST_BYTES = 1024
"""Minimum size of a tensor to be stored outside its graph, or shared between files."""


class Place(NamedTuple):
    """Position of a tensor's bytes."""

    location: str
    offset: int
    length: int
    key: str = ""
    """Name of the tensor in a safetensors file."""


Places = Mapping[bytes, Place]
"""Positions of tensors by the SHA-256 of their bytes."""


def places_of(paths: Iterable[Path]) -> dict[bytes, Place]:
    """Return the positions of large tensors, by the SHA-256 of their bytes.

    Of a graph its external data counts.
    """
    places: dict[bytes, Place] = {}
    for path in paths:
        listed = stored if path.suffix == ".safetensors" else external
        for place in listed(path):
            with (path.parent / place.location).open("rb") as file:
                file.seek(place.offset)
                places.setdefault(hashlib.sha256(file.read(place.length)).digest(), place)
    return places


def stored(path: Path) -> Iterator[Place]:
    """Yield the positions of large tensors in a safetensors file itself."""
    for key, entry in read_header(path).own.items():
        if entry.length >= LEAST_BYTES:
            yield Place(path.name, entry.offset, entry.length, key)


def external(path: Path) -> Iterator[Place]:
    """Yield the positions of a graph's tensors in other files."""
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            info = ExternalDataInfo(tensor)
            yield Place(info.location, info.offset or 0, info.length or 0)


def refer(model: onnx.ModelProto, places: Places) -> None:
    """Replace the bytes of each large tensor that another file has by a reference.

    If another file has it transposed, because exporters fold transpositions, the reference gets a
    Transpose node.
    """
    transposes = []
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) < LEAST_BYTES:
            continue
        values = numpy_helper.to_array(tensor)
        match = _find(values, places)
        if match is None:
            continue
        place, axes = match
        set_external_data(tensor, place.location, place.offset, place.length)
        tensor.ClearField("raw_data")
        if axes != tuple(range(values.ndim)):
            name = tensor.name
            tensor.name = f"{name}.stored"
            tensor.dims[:] = [values.shape[axis] for axis in axes]
            back = [*np.argsort(axes).tolist()]
            node = onnx.helper.make_node("Transpose", [tensor.name], [name], name, perm=back)
            transposes.append(node)
    nodes = [*transposes, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def save_tensors(
    tensors: Mapping[str, torch.Tensor], path: Path, beside: Sequence[Path] = ()
) -> None:
    """Write a safetensors file.

    Large tensors of the safetensors files `beside` it, in the same folder, are not repeated.
    """
    places = places_of(beside)
    own, shared = {}, {}
    for key, tensor in tensors.items():
        values = tensor.detach().numpy()
        match = _find(values, places) if values.nbytes >= LEAST_BYTES else None
        if match is None:
            own[key] = tensor.contiguous()
            continue
        place, axes = match
        shape = tuple(values.shape[axis] for axis in axes)
        shared[key] = Reference(place.location, place.key, shape, (*np.argsort(axes).tolist(),))
    metadata = {SHARED: json.dumps(shared, sort_keys=True)} if shared else None
    with writing(path):
        save_file(own, path, metadata)


def _find(values: NDArray[np.generic], places: Places) -> tuple[Place, tuple[int, ...]] | None:
    """Return the position of equal values, and the order of axes in which they are stored."""
    if values.nbytes not in {place.length for place in places.values()}:
        return None
    for axes in itertools.permutations(range(values.ndim)):
        ordered = np.ascontiguousarray(values.transpose(axes))
        if place := places.get(hashlib.sha256(ordered.data).digest()):
            return place, axes
    return None
