"""Parts of a run: a safetensors file for each completed window.

Format: https://huggingface.co/docs/safetensors. Parts are written atomically, whenever the process
ends: under another name, synchronised to the disk, and then renamed.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import orjson
from safetensors import SafetensorError, safe_open

from service.files.options import ROWS, Array

SUFFIX = ".part"
_DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
}


class Spec(NamedTuple):
    """Dtype and shape of an array in a file."""

    dtype: str
    """Name of the dtype in numpy."""
    shape: tuple[int, ...]


class Skipped(NamedTuple):
    """Row without vectors."""

    position: int
    """Index of the row over all inputs, from 0."""
    where: str
    problem: str


@dataclass(frozen=True)
class Part:
    """Completed window."""

    path: Path
    start: int
    end: int
    skips: int
    """Number of rows without vectors."""
    specs: Mapping[str, Spec]
    """Arrays by name; empty if every row was skipped."""

    @property
    def texts(self) -> int:
        """Number of rows with vectors."""
        return self.specs[ROWS].shape[0] if self.specs else 0

    def skipped(self) -> list[Skipped]:
        """Read the rows without vectors from the disk."""
        with safe_open(self.path, framework="numpy") as file:
            return [Skipped(*row) for row in orjson.loads(file.metadata()["skipped"])]

    def array(self, name: str) -> Array:
        """Read an array from the disk."""
        with safe_open(self.path, framework="numpy") as file:
            array: Array = file.get_tensor(name)
        return array


def write_part(
    folder: Path, start: int, end: int, arrays: Mapping[str, Array], skipped: Iterable[Skipped]
) -> None:
    """Write the part of a completed window; paths sort in the order of windows."""
    path = folder / f"{start:012}{SUFFIX}"
    specs = {name: Spec(array.dtype.name, array.shape) for name, array in arrays.items()}
    about = {
        "start": str(start),
        "end": str(end),
        "skipped": orjson.dumps([*map(list, skipped)]).decode(),
    }
    with replacing(path) as file:
        for name in write_head(file, specs, about):
            file.write(np.ascontiguousarray(arrays[name]).data)


def write_head(file: BinaryIO, specs: Mapping[str, Spec], about: Mapping[str, str]) -> list[str]:
    """Write the header of a safetensors file, and return the arrays' order, widest items first."""
    order = sorted(specs, key=lambda name: -np.dtype(specs[name].dtype).itemsize)
    header: dict[str, object] = {"__metadata__": dict(about)}
    end = 0
    for name in order:
        dtype, shape = specs[name]
        start, end = end, end + math.prod(shape) * np.dtype(dtype).itemsize
        header[name] = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": (start, end)}
    encoded = orjson.dumps(header)
    encoded += b" " * (-len(encoded) % 8)
    file.write(len(encoded).to_bytes(8, "little") + encoded)
    return order


def read_parts(folder: Path) -> Iterator[Part]:
    """Yield the parts in the order of windows, and skip corrupt parts."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            with safe_open(path, framework="numpy") as file:
                about = file.metadata()
                names = file.keys()
                slices = {name: file.get_slice(name) for name in names}
                specs = {
                    name: Spec(_NAMES[array.get_dtype()], tuple(array.get_shape()))
                    for name, array in slices.items()
                }
            skips = len(orjson.loads(about["skipped"]))
            start, end = int(about["start"]), int(about["end"])
        except (SafetensorError, KeyError, TypeError, ValueError):
            continue
        yield Part(path, start, end, skips, specs)


_NAMES = {short: name for name, short in _DTYPES.items()}


def create(path: Path) -> BinaryIO:
    """Create a file for writing; an existing file or link is removed, never followed."""
    path.unlink(missing_ok=True)
    return path.open("x+b")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a draft that becomes the file, atomically and on the disk, once it is written."""
    draft = path.with_suffix(".draft")
    with create(draft) as file:
        yield file
        sync(file)
    draft.replace(path)
    sync_folder(path.parent)


def sync(file: BinaryIO) -> None:
    """Synchronise a file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Synchronise the entries of a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
