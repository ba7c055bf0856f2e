"""Memory-mapped tensors of a safetensors file.

Format: https://huggingface.co/docs/safetensors. A file of an artifact does not repeat a large
tensor of a file beside it: the entry `shared` of its metadata names that tensor, and how to reshape
and transpose it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SHARED = "shared"
"""Metadata key of the tensors in other files: a JSON object, key → `Reference`."""
_MAX_BYTES = 100_000_000
"""Maximum size of a header, as in the format's own reader."""


class Entry(NamedTuple):
    """Position of a tensor's bytes in its file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


class Reference(NamedTuple):
    """Tensor of another file, to be reshaped and then transposed."""

    file: str
    key: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]


class Header(NamedTuple):
    """Tensors of a file: its own, and those it shares."""

    own: dict[str, Entry]
    shared: dict[str, Reference]


def read_header(path: Path) -> Header:
    """Read the header of a safetensors file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a safetensors file, or names a file outside its folder.

    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(min(size, _MAX_BYTES)))
    shared = json.loads(header.pop("__metadata__", {}).get(SHARED, "{}"))
    references = {
        key: Reference(file, name, tuple(shape), tuple(axes))
        for key, (file, name, shape, axes) in shared.items()
    }
    for reference in references.values():
        if Path(reference.file).name != reference.file:
            raise ValueError(f"{path} names {reference.file}, which is not beside it")
    own = {}
    for key, entry in header.items():
        begin, end = entry["data_offsets"]
        own[key] = Entry(entry["dtype"], tuple(entry["shape"]), 8 + size + begin, end - begin)
    return Header(own, references)


def mapped_tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """Map the float32 tensors of a file, and the tensors it names in other files, by key.

    The arrays are read-only views. Transposed ones are not contiguous.

    Raises:
        OSError: a file cannot be read.
        ValueError: the file is not a safetensors file of float32.
        KeyError: another file lacks a named tensor.

    """
    header = read_header(path)
    tensors = _own(path, header)
    for name in {reference.file for reference in header.shared.values()}:
        beside = path.with_name(name)
        others = _own(beside, read_header(beside))
        tensors |= {
            key: others[reference.key].reshape(reference.shape).transpose(reference.axes)
            for key, reference in header.shared.items()
            if reference.file == name
        }
    return tensors


def _own(path: Path, header: Header) -> dict[str, NDArray[np.float32]]:
    content = np.asarray(np.memmap(path, np.uint8, mode="r"))
    tensors = {}
    for key, entry in header.own.items():
        if entry.dtype != "F32":
            raise ValueError(f"{path} holds {key} as {entry.dtype}, not F32")
        values = content[entry.offset : entry.offset + entry.length].view(np.float32)
        tensors[key] = values.reshape(entry.shape)
    return tensors
