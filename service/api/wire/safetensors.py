"""A safetensors file as a list of buffers, without copying a tensor.

The library's own writer copies everything twice, which for 75 MB of attention maps takes half as
long as computing them. Format: https://huggingface.co/docs/safetensors, "Format": the header's
length as a little-endian u64, the header as JSON padded with spaces, then the tensors end to end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.api.wire.media import Part

_DTYPES = {"float32": "F32", "float16": "F16", "int32": "I32", "uint8": "U8"}
_ALIGNMENT = 8
_BLOCK = 2**16


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor of the file."""

    name: str
    dtype: str
    """numpy's name of it."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def aligned(specs: Iterable[Spec]) -> list[Spec]:
    """The widest first, else as they were: then every tensor is aligned to its own item size."""
    return sorted(specs, key=lambda spec: -np.dtype(spec.dtype).itemsize)


def safetensors_head(specs: Iterable[Spec], metadata: Mapping[str, str]) -> bytes:
    """What stands before the tensors, which follow in the order of `specs`."""
    header: dict[str, Any] = {"__metadata__": metadata}
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
    tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> list[Part]:
    """The file's parts, in order; the tensors' are views, so they must not change meanwhile.

    Args:
        tensors: C-contiguous, little-endian, of the dtypes that replies have.
        metadata: what goes into `__metadata__`.

    """
    specs = aligned(Spec(name, t.dtype.name, t.shape) for name, t in tensors.items())
    return [safetensors_head(specs, metadata), *(as_bytes(tensors[spec.name]) for spec in specs)]


def as_bytes(tensor: NDArray[Any]) -> memoryview:
    """A C-contiguous tensor's own memory."""
    return tensor.reshape(-1).view(np.uint8).data


def float16_weights(weights: NDArray[np.float32]) -> NDArray[np.float16]:
    """Weights from 0 to 1 rounded to the nearest float16, as `astype` does.

    numpy converts one by one, and slowly where the result is subnormal, as most attention weights
    of a long text are. Here a block at a time stays in the cache: the bits of a normal number are
    rounded to even and its exponent shifted; adding 1/2 to a smaller one leaves its float16 bits at
    the end of the mantissa.
    """
    rounded = np.empty(weights.shape, np.uint16)
    bits, found = weights.reshape(-1).view(np.uint32), rounded.reshape(-1)
    for start in range(0, len(bits), _BLOCK):
        block = bits[start : start + _BLOCK]
        tiny = (block.view(np.float32) + np.float32(0.5)).view(np.uint32) - np.uint32(0x3F000000)
        normal = block >> 13
        normal &= 1
        normal += block
        normal += 0xFFF
        normal >>= 13
        normal -= 112 << 10
        found[start : start + _BLOCK] = np.where(block < 0x38800000, tiny, normal)
    return rounded.view(np.float16)
