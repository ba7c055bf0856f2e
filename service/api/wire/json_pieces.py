"""Serialisation of large replies: JSON in pieces, which joined are orjson's bytes, and safetensors.

orjson holds the GIL while it serialises, so each piece is small; see `service.http.exchange.Turns`.

The library's writer of safetensors copies everything twice, which for 75 MB of attention maps takes
half as long as computing them. Format: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.api.wire.media import Part, Unwritten

_DTYPES = {"float32": "F32", "float16": "F16", "int32": "I32", "int8": "I8", "uint8": "U8"}
_ALIGNMENT = 8
_BLOCK = 2**16


@dataclass(frozen=True, slots=True)
class Spec:
    """Name, dtype and shape of a tensor in the file."""

    name: str
    dtype: str
    """Name of the dtype in numpy."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's data."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def aligned(specs: Iterable[Spec]) -> list[Spec]:
    """Sort tensors by descending item size, so that each is aligned to its item size."""
    return sorted(specs, key=lambda spec: -np.dtype(spec.dtype).itemsize)


def safetensors_head(specs: Iterable[Spec], metadata: Mapping[str, str]) -> bytes:
    """Return the header's length and the header; the tensors follow in the order of `specs`."""
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for spec in specs:
        start, end = end, end + spec.nbytes
        header[spec.name] = {
            "dtype": _DTYPES[spec.dtype],
            "shape": spec.shape,
            "data_offsets": (start, end),
        }
    encoded = orjson.dumps(header)
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    return len(encoded).to_bytes(8, "little") + encoded


def safetensors_parts(
    tensors: Mapping[str, NDArray[np.generic]], metadata: Mapping[str, str]
) -> list[Part]:
    """Return the file's parts; tensors are views, so they must not change before they are sent.

    The tensors are C-contiguous and little-endian, of the dtypes in `_DTYPES`.
    """
    specs = aligned(Spec(name, t.dtype.name, t.shape) for name, t in tensors.items())
    return [safetensors_head(specs, metadata), *(as_bytes(tensors[spec.name]) for spec in specs)]


def as_bytes(tensor: NDArray[np.generic]) -> memoryview:
    """Return the memory of a C-contiguous tensor as bytes."""
    return tensor.reshape(-1).view(np.uint8).data


def float16_weights(weights: NDArray[np.float32]) -> NDArray[np.float16]:
    """Round weights of 0 … 1 to the nearest float16, as `astype` does but faster.

    numpy converts one value at a time, and slowly if the result is subnormal, as most attention
    weights of long texts are. Here each block stays in the cache. The bits of a normal number are
    rounded to even and its exponent is shifted. Adding 1/2 to a smaller number leaves its float16
    bits at the end of the mantissa.
    """
    rounded = np.empty(weights.shape, np.uint16)
    bits, flat = weights.reshape(-1).view(np.uint32), rounded.reshape(-1)
    for start in range(0, len(bits), _BLOCK):
        block = bits[start : start + _BLOCK]
        tiny = (block.view(np.float32) + np.float32(0.5)).view(np.uint32) - np.uint32(0x3F000000)
        normal = block >> 13
        normal &= 1
        normal += block
        normal += 0xFFF
        normal >>= 13
        normal -= 112 << 10
        flat[start : start + _BLOCK] = np.where(block < 0x38800000, tiny, normal)
    return rounded.view(np.float16)


PIECE = 2**13
"""Maximum numbers of arrays in a piece; as float32 they take 0.15 ms (Zen 4)."""
_PLAIN = frozenset((list, bool, int, float, str))
"""Types that are written at once; asking what else a value is takes longer than to write some."""
BASE64_BYTES = 3 * 2**14
"""Maximum bytes of a piece before base64; a multiple of 3, so that only the end is padded."""


def json_pieces(value: object) -> Unwritten:
    """Yield the JSON of a value, which an iterator already gives in pieces.

    Arrays, also as members of objects, are written in pieces, all other values at once.
    """
    if isinstance(value, dict):
        if not _large(value.values()):
            yield as_json(value)
            return
        yield b"{"
        yield from member_pieces(value)
        yield b"}"
    elif isinstance(value, np.ndarray) and value.size > PIECE:
        yield b"["
        yield from item_pieces(value)
        yield b"]"
    elif isinstance(value, Iterator):
        yield from value
    else:
        yield as_json(value)


def member_pieces(members: Mapping[str, object]) -> Unwritten:
    """Yield the JSON of an object's members, without the braces around them."""
    separator = b""
    for name, value in members.items():
        yield separator + orjson.dumps(name) + b":"
        yield from json_pieces(value)
        separator = b","


def _large(values: Iterable[object]) -> bool:
    """Return whether an object with these values may have more than `PIECE` numbers of arrays."""
    numbers = 0
    for value in values:
        if isinstance(value, np.ndarray):
            numbers += value.size
        elif type(value) not in _PLAIN and isinstance(value, Iterator | dict):
            return True
    return numbers > PIECE


def list_pieces(items: Iterable[object]) -> Unwritten:
    """Yield the JSON of a list, at least a piece for each item; see `json_pieces`."""
    opening = b"["
    for item in items:
        yield opening
        yield from json_pieces(item)
        opening = b","
    yield b"]" if opening == b"," else b"[]"


def item_pieces(array: NDArray[np.generic]) -> Unwritten:
    """Yield the JSON of the items of an array's first axis, without the brackets around them."""
    item_size = array[:1].size
    if item_size > PIECE:
        for number, item in enumerate(array):
            if number:
                yield b","
            yield from json_pieces(item)
        return
    step = PIECE // max(item_size, 1)
    for start in range(0, len(array), step):
        if start:
            yield b","
        yield memoryview(as_json(array[start : start + step]))[1:-1]


def base64_pieces(array: NDArray[np.generic]) -> Unwritten:
    """Yield a JSON string of an array's bytes, little-endian and row-major, in base64."""
    content = as_bytes(np.ascontiguousarray(array, array.dtype.newbyteorder("<")))
    yield b'"'
    for start in range(0, len(content), BASE64_BYTES):
        yield base64.b64encode(content[start : start + BASE64_BYTES])
    yield b'"'


def grouped(values: Mapping[str, object]) -> dict[str, object]:
    """Return members of an object; a name with a dot is the name of a member's member."""
    members: dict[str, Any] = {}
    for name, value in values.items():
        first, dot, second = name.partition(".")
        if dot:
            members.setdefault(first, {})[second] = value
        else:
            members[name] = value
    return members


def as_json(value: object) -> bytes:
    """Return the JSON of a small value, which may contain arrays, also non-contiguous ones."""
    return orjson.dumps(value, np.ascontiguousarray, orjson.OPT_SERIALIZE_NUMPY)
