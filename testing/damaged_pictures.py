"""Damaged picture files, made from whole ones by seeded random changes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence

import numpy as np

EXTREMES = (
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\0\0\xff\xff",
)
"""Numbers of 4 bytes at which sizes and offsets overflow."""
HEADER_BYTES = 128
"""Bytes at the start of a file that every second change is in."""


def damaged(files: Sequence[bytes], seed: int) -> bytes:
    """Return one of the files after 1 … 8 changes; the same for the same seed.

    A changed PNG file gets new checksums in every second case, so that its chunks are read.
    """
    rng = np.random.default_rng(seed)
    data = bytearray(files[int(rng.integers(len(files)))])
    for _ in range(rng.integers(1, 9)):
        change = CHANGES[rng.integers(len(CHANGES))]
        end = min(len(data), HEADER_BYTES) if rng.random() < 0.5 else len(data)
        change(data, int(rng.integers(max(1, end))), rng)
    if rng.random() < 0.1:
        other = files[int(rng.integers(len(files)))]
        data = data[: rng.integers(len(data) + 1)] + other[rng.integers(len(other)) :]
    return with_checksums(bytes(data)) if rng.random() < 0.5 else bytes(data)


def _flip(data: bytearray, place: int, rng: np.random.Generator) -> None:
    if data:
        data[place] ^= 1 << int(rng.integers(8))


def _overwrite(data: bytearray, place: int, rng: np.random.Generator) -> None:
    size = int(rng.integers(1, 17))
    data[place : place + size] = rng.bytes(size)


def _extreme(data: bytearray, place: int, rng: np.random.Generator) -> None:
    data[place : place + 4] = EXTREMES[rng.integers(len(EXTREMES))]


def _cut(data: bytearray, place: int, rng: np.random.Generator) -> None:
    del data[place : place + int(rng.integers(1, 65))]


def _repeat(data: bytearray, place: int, rng: np.random.Generator) -> None:
    part = bytes(data[place : place + int(rng.integers(1, 65))])
    data[place:place] = part * int(rng.integers(1, 9))


def _truncate(data: bytearray, place: int, rng: np.random.Generator) -> None:
    if rng.random() < 0.2:
        del data[place:]


CHANGES: tuple[Callable[[bytearray, int, np.random.Generator], None], ...] = (
    *(_flip, _overwrite, _extreme, _cut, _repeat, _truncate),
)


def with_checksums(data: bytes) -> bytes:
    """Return a PNG file with the right checksum after each whole chunk; other files unchanged."""
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return data
    result, place = bytearray(data), 8
    while place + 12 <= len(data):
        (size,) = struct.unpack_from(">I", data, place)
        end = place + 8 + size
        if end + 4 > len(data):
            break
        struct.pack_into(">I", result, end, zlib.crc32(data[place + 4 : end]))
        place = end + 4
    return bytes(result)
