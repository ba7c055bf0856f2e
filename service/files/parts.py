"""Parts: what is done of a run, a safetensors file a window (https://huggingface.co/docs/safetensors).

A part is there whole or not at all, whenever the process ends: it is written under another name,
brought to the disk, and renamed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson
from safetensors import SafetensorError, safe_open

from service.files.fields import ROWS, Array

SUFFIX = ".part"
_DTYPES = {"float32": "F32", "int32": "I32", "int64": "I64"}


class Spec(NamedTuple):
    """An array of a file."""

    dtype: str
    """numpy's name of it."""
    shape: tuple[int, ...]


class Skipped(NamedTuple):
    """A row that has no vectors."""

    position: int
    """Over all inputs, from 0."""
    where: str
    problem: str


@dataclass(frozen=True)
class Part:
    """One window that is done."""

    path: Path
    start: int
    end: int
    skips: int
    """Number of its rows that have no vectors."""
    specs: Mapping[str, Spec]
    """Its arrays; none where every row was skipped."""

    @property
    def texts(self) -> int:
        """Rows that have vectors."""
        return self.specs[ROWS].shape[0] if self.specs else 0

    def skipped(self) -> list[Skipped]:
        """Return its rows without vectors, read from the disk."""
        with safe_open(self.path, framework="numpy") as file:
            return [Skipped(*row) for row in orjson.loads(file.metadata()["skipped"])]

    def array(self, name: str) -> Array:
        """One of its arrays, read from the disk."""
        with safe_open(self.path, framework="numpy") as file:
            found: Array = file.get_tensor(name)
        return found


def part_path(folder: Path, start: int) -> Path:
    """Where the part of a window is; names sort as the windows do."""
    return folder / f"{start:012}{SUFFIX}"


def write_part(
    folder: Path, start: int, end: int, arrays: Mapping[str, Array], skipped: Iterable[Skipped]
) -> None:
    """Keep what a window has come to.

    Raises:
        OSError: it cannot be written.

    """
    path = part_path(folder, start)
    specs = {name: Spec(array.dtype.name, array.shape) for name, array in arrays.items()}
    about = {
        "start": str(start),
        "end": str(end),
        "skipped": orjson.dumps([*map(list, skipped)]).decode(),
    }
    draft = path.with_suffix(".draft")
    with create(draft) as file:
        order = write_head(file, specs, about)
        for name in order:
            file.write(np.ascontiguousarray(arrays[name]).data)
        settle(file)
    draft.replace(path)
    settle_folder(folder)


def write_head(file: BinaryIO, specs: Mapping[str, Spec], about: Mapping[str, str]) -> list[str]:
    """Write what stands before the arrays; returns their order, the widest numbers first."""
    order = sorted(specs, key=lambda name: -np.dtype(specs[name].dtype).itemsize)
    header: dict[str, Any] = {"__metadata__": dict(about)}
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
    """The parts in the order of their windows; one that is damaged is not there."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            with safe_open(path, framework="numpy") as file:
                about = file.metadata()
                names = file.keys()
                slices = {name: file.get_slice(name) for name in names}
                specs = {
                    name: Spec(_NAMES[one.get_dtype()], tuple(one.get_shape()))
                    for name, one in slices.items()
                }
            skips = len(orjson.loads(about["skipped"]))
            start, end = int(about["start"]), int(about["end"])
        except (SafetensorError, KeyError, TypeError, ValueError):
            continue
        yield Part(path, start, end, skips, specs)


_NAMES = {short: name for name, short in _DTYPES.items()}


def create(path: Path) -> BinaryIO:
    """Open a new file for writing; a file or link of its name is removed, never followed."""
    path.unlink(missing_ok=True)
    return path.open("x+b")


def settle(file: BinaryIO) -> None:
    """Bring a file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def settle_folder(folder: Path) -> None:
    """Bring a folder's names to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
