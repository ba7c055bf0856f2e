"""Parts of a run, a safetensors file for each completed window, and outputs written from them.

Parts are written atomically, whenever the process ends: under another name, synchronised to the
disk, and then renamed. Outputs are arrays without columns, rows of JSON, and a table of importance.
Ragged arrays are concatenated; text i has the entries `cu_seqlens[i]:cu_seqlens[i + 1]`.

Formats: https://huggingface.co/docs/safetensors and
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

import numpy as np
import orjson
from safetensors import SafetensorError, safe_open

from service.files.options import (
    FIELDS,
    LENGTHS,
    NO_METADATA,
    ROW,
    ROWS,
    Array,
    Kind,
    columns_of,
)
from service.files.rows import Row
from service.inference.outputs.field import Field

CU_SEQLENS = "cu_seqlens"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Modification time of every archive member, so that the same arrays give the same file."""
SUFFIX = ".part"
_DTYPES = {
    name: f"{name[0].upper()}{8 * np.dtype(name).itemsize}"
    for name in ("float32", "float16", "int64", "int32", "int8", "uint8")
}
_NAMES = {short: name for name, short in _DTYPES.items()}


class Spec(NamedTuple):
    """Dtype and shape of an array in a file."""

    dtype: str
    """Name of the dtype in numpy."""
    shape: tuple[int, ...]


class Skipped(NamedTuple):
    """Row without vectors."""

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


def specs_of(parts: Sequence[Part]) -> dict[str, Spec]:
    """Return the dtypes and shapes of the arrays of all parts together."""
    specs: dict[str, Spec] = {}
    for part in parts:
        for name, (dtype, shape) in part.specs.items():
            entries = specs[name].shape[0] if name in specs else 0
            specs[name] = Spec(dtype, (entries + shape[0], *shape[1:]))
    if LENGTHS in specs:
        texts = specs.pop(LENGTHS).shape[0]
        specs[CU_SEQLENS] = Spec("int64", (texts + 1,))
    return specs


def chunks(parts: Sequence[Part], name: str) -> Iterator[Array]:
    """Yield the pieces of an array, with one part in memory at a time."""
    if name != CU_SEQLENS:
        yield from (part.array(name) for part in parts if part.specs)
        return
    last = np.zeros(1, np.int64)
    yield last
    for part in parts:
        if part.specs:
            ends = last + np.cumsum(part.array(LENGTHS))
            last = ends[-1:]
            yield ends


def write_npy(file: IO[bytes], parts: Sequence[Part], name: str) -> None:
    """Write an array of all parts in .npy format."""
    spec = specs_of(parts)[name]
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(spec.dtype)),
        "fortran_order": False,
        "shape": spec.shape,
    }
    np.lib.format.write_array_header_1_0(file, header)
    for piece in chunks(parts, name):
        file.write(np.ascontiguousarray(piece).data)


def write_npz(file: BinaryIO, parts: Sequence[Part]) -> None:
    """Write an uncompressed .npz archive of all arrays."""
    with zipfile.ZipFile(file, "w") as archive:
        for name in specs_of(parts):
            member = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
            with archive.open(member, "w", force_zip64=True) as stream:
                write_npy(stream, parts, name)


def write_safetensors(
    file: BinaryIO, parts: Sequence[Part], metadata: Mapping[str, str] = NO_METADATA
) -> None:
    """Write all arrays as safetensors, without padding, as the binary format of `POST /encode`."""
    for name in write_head(file, specs_of(parts), metadata):
        file.writelines(np.ascontiguousarray(piece).data for piece in chunks(parts, name))


Rows = tuple[list[Row], dict[str, Array]]
"""Rows of a part that have vectors, and the part's arrays."""


def with_rows(parts: Sequence[Part], rows: Iterator[Row]) -> Iterator[Rows]:
    """Yield the rows and arrays of each part."""
    for part in parts:
        own = list(itertools.islice(rows, part.end - part.start))
        if part.specs:
            arrays = {name: part.array(name) for name in part.specs}
            arrays[ROW] = arrays[ROWS]
            kept = (arrays[ROWS] - part.start).tolist()
            yield [own[index] for index in kept], arrays


def of_texts(field: Field, arrays: dict[str, Array]) -> Sequence[Array]:
    """Return a field's array for each text of a part."""
    values = arrays[field.name]
    return np.split(values, np.cumsum(arrays[LENGTHS])[:-1]) if field.ragged else list(values)


def write_jsonl(file: BinaryIO, kind: Kind, parts: Sequence[Part], rows: Iterator[Row]) -> None:
    """Write a JSON object for each text, with the input's columns followed by the kind's fields."""
    fields = columns_of(kind)
    for own, arrays in with_rows(parts, rows):
        columns = [of_texts(field, arrays) for field in fields]
        for row, *values in zip(own, *columns, strict=True):
            file.write(row.source.json(row))
            for field, value in zip(fields, values, strict=True):
                name = orjson.dumps(field.name)
                numbers = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
                file.write(b"," + name + b":" + numbers)
            file.write(b"}\n")


def importance_table(parts: Sequence[Part]) -> str:
    """Return the mean over all texts as a table: a line for each layer, a column for each head.

    Michel et al. 2019 (https://arxiv.org/abs/1905.10650) ablate one head at a time. Here the loss
    is 1 − cosine between a text's vectors with and without the head.
    """
    (field,) = FIELDS["importance"]
    texts = sum(part.texts for part in parts)
    total = sum(
        part.array(field.name).sum(axis=0, dtype=np.float64) for part in parts if part.texts
    )
    mean = np.asarray(total) / texts
    lines = [f"mean of 1 - cosine without each head, over {texts} texts"]
    lines.append("layer \\ head" + "".join(f"{head:>9}" for head in range(mean.shape[1])))
    lines += [
        f"{layer:>12}" + "".join(f"{value:>9.5f}" for value in row)
        for layer, row in enumerate(mean)
    ]
    return "\n".join(lines)
