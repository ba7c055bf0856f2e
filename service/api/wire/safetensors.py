"""Serialisation of safetensors as a list of buffers, without copying tensors.

The library's writer copies everything twice, which for 75 MB of attention maps takes half as long
as computing them. Format: https://huggingface.co/docs/safetensors, "Format": the header's length as
a little-endian u64, the header as JSON padded with spaces, then the tensors end to end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from service.api.wire.media import Part

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

    Args:
        tensors: C-contiguous, little-endian tensors by name, of the dtypes in `_DTYPES`.
        metadata: content of `__metadata__`.

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
