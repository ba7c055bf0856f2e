"""Array outputs without columns: .npy, .npz and .safetensors, written part by part.

Formats: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html and
https://huggingface.co/docs/safetensors. Ragged arrays are concatenated; text i has the entries
`cu_seqlens[i]:cu_seqlens[i + 1]`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, BinaryIO

import numpy as np

from service.files.fields import LENGTHS, NO_METADATA, Array
from service.files.parts import Part, Spec, write_head

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
