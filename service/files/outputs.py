"""Outputs, written part by part: arrays without columns, rows of JSON, and a table of importance.

Formats: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html and
https://huggingface.co/docs/safetensors. Ragged arrays are concatenated; text i has the entries
`cu_seqlens[i]:cu_seqlens[i + 1]`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, BinaryIO

import numpy as np
import orjson

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
from service.files.parts import Part, Spec, write_head
from service.files.rows import Place
from service.inference.outputs.field import Field

CU_SEQLENS = "cu_seqlens"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Modification time of every archive member, so that the same arrays give the same file."""


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


def write_npy(file: IO[bytes], spec: Spec, pieces: Iterator[Array]) -> None:
    """Write an array in .npy format."""
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(spec.dtype)),
        "fortran_order": False,
        "shape": spec.shape,
    }
    np.lib.format.write_array_header_1_0(file, header)
    for piece in pieces:
        file.write(np.ascontiguousarray(piece).data)


def write_vectors(file: BinaryIO, parts: Sequence[Part], name: str) -> None:
    """Write a .npy file of the array with a name."""
    write_npy(file, specs_of(parts)[name], chunks(parts, name))


def write_npz(file: BinaryIO, parts: Sequence[Part]) -> None:
    """Write an uncompressed .npz archive of all arrays."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, spec in specs_of(parts).items():
            member = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
            with archive.open(member, "w", force_zip64=True) as stream:
                write_npy(stream, spec, chunks(parts, name))


def write_safetensors(
    file: BinaryIO, parts: Sequence[Part], metadata: Mapping[str, str] = NO_METADATA
) -> None:
    """Write all arrays as safetensors, without padding, as the binary format of `POST /encode`."""
    for name in write_head(file, specs_of(parts), metadata):
        file.writelines(np.ascontiguousarray(piece).data for piece in chunks(parts, name))


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
