"""JSON of large replies in pieces: the same bytes as orjson writes for the whole reply.

Pieces are small, because nothing else runs while orjson writes one; see `service/http/turns.py`.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.api.wire.media import Unwritten
from service.api.wire.safetensors import as_bytes

PIECE = 2**13
"""Maximum numbers of arrays in a piece: 0.15 ms of float32 (Zen 4)."""
ITEMS = 2**9
"""Maximum items of a list in a piece."""
BASE64_BYTES = 3 * 2**14
"""Maximum bytes of a piece before base64; a multiple of 3, so that only the last is padded."""


def object_pieces(members: Mapping[str, Any]) -> Unwritten:
    """Yield an object; see `member_pieces`."""
    yield b"{"
    yield from member_pieces(members)
    yield b"}"


def member_pieces(members: Mapping[str, Any]) -> Unwritten:
    """Yield the members of an object, without the braces around them.

    Args:
        members: values by name; only arrays and iterators of pieces are written in pieces.

    """
    separator = b""
    for run in _runs(members):
        yield separator
        separator = b","
        (name, value), *others = run.items()
        if others or not isinstance(value, np.ndarray | Iterator):
            yield as_json(run)[1:-1]
            continue
        yield orjson.dumps(name) + b":"
        yield from array_pieces(value) if isinstance(value, np.ndarray) else value


def _runs(members: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield runs of members with at most `PIECE` numbers in arrays; an iterator is a run alone."""
    run: dict[str, Any] = {}
    room = PIECE
    for name, value in members.items():
        alone = isinstance(value, Iterator)
        size = value.size if isinstance(value, np.ndarray) else 0
        if run and (alone or size > room):
            yield run
            run, room = {}, PIECE
        run[name] = np.ascontiguousarray(value) if 0 < size <= room else value
        room -= size
        if alone:
            yield run
            run, room = {}, PIECE
    if run:
        yield run


def list_pieces(items: Iterable[Any], at_a_time: int = ITEMS) -> Unwritten:
    """Yield a list of small items, which may be generated on demand.

    Args:
        items: items of the list.
        at_a_time: number of items in a piece.

    """
    left = iter(items)
    opening = b"["
    while batch := [*itertools.islice(left, at_a_time)]:
        yield opening + as_json(batch)[1:-1]
        opening = b","
    yield b"]" if opening == b"," else b"[]"


def array_pieces(array: NDArray[Any]) -> Unwritten:
    """Yield an array as nested lists."""
    if array.size <= PIECE:
        yield as_json(np.ascontiguousarray(array))
        return
    yield b"["
    yield from item_pieces(array)
    yield b"]"


def arrays_pieces(arrays: Iterable[NDArray[Any]]) -> Unwritten:
    """Yield a list of arrays."""
    opening = b"["
    for array in arrays:
        yield opening
        yield from array_pieces(array)
        opening = b","
    yield b"]"


def item_pieces(array: NDArray[Any]) -> Unwritten:
    """Yield the items of an array's first axis, without the brackets around them."""
    item_size = array[:1].size
    if item_size > PIECE:
        for number, item in enumerate(array):
            if number:
                yield b","
            yield from array_pieces(item)
        return
    step = PIECE // max(item_size, 1)
    for start in range(0, len(array), step):
        if start:
            yield b","
        yield memoryview(as_json(np.ascontiguousarray(array[start : start + step])))[1:-1]


def vector_pieces(array: NDArray[Any], *, as_base64: bool = False) -> Unwritten:
    """Return a vector or matrix as lists of numbers, or as base64."""
    return base64_pieces(array) if as_base64 else array_pieces(array)


def base64_pieces(array: NDArray[Any]) -> Unwritten:
    """Yield a string of an array's numbers in base64: little-endian and row-major."""
    content = as_bytes(np.ascontiguousarray(array, array.dtype.newbyteorder("<")))
    yield b'"'
    for start in range(0, len(content), BASE64_BYTES):
        yield base64.b64encode(content[start : start + BASE64_BYTES])
    yield b'"'


def as_json(value: Any) -> bytes:
    """Return the JSON of a small value, which may contain arrays."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
