"""Page-locked host memory for arrays that come from a device, used again when they are freed.

A copy from a device into page-locked memory runs at the bus's rate. Into ordinary memory it is
split into pieces by the driver, and new memory also has to be mapped page by page.
"""

from __future__ import annotations

import ctypes
import logging
import math
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.numerics.batch import coarser

Floats = NDArray[np.float32]
Register = Callable[[int, int], int]
"""Function that page-locks memory, given its address and bytes; returns CUDA's error code."""
LEAST_BYTES = 2**16
"""Size below which the driver copies through a buffer of its own."""
MOST_BYTES = 2**30
"""Maximum of page-locked memory, which the system cannot swap; beyond it, memory is ordinary."""
_log = logging.getLogger("headscope")


class _Lease:
    """Owner of an array over a piece of memory; numpy's views of the array keep it alive."""

    def __init__(self, memory: NDArray[np.uint8], shape: tuple[int, ...]) -> None:
        self.__array_interface__: dict[str, Any] = {
            "data": (memory.ctypes.data, False),
            "shape": shape,
            "typestr": np.dtype(np.float32).str,
            "version": 3,
        }


class HostMemory:
    """Pool of page-locked pieces of memory; calls are thread-safe.

    Pieces are never unlocked, so a pool has to live as long as its process: CUDA would copy to the
    old pages of an address that the system has given to other memory.
    """

    def __init__(self, register: Register | None) -> None:
        """Page-lock by a function; without one, all memory is ordinary."""
        self._register = register
        self._lock = threading.Lock()
        self._free: dict[int, list[NDArray[np.uint8]]] = {}
        self.locked_bytes = 0

    def take(self, shape: tuple[int, ...]) -> Floats:
        """Return an array of float32 of any content; its memory is free once nothing views it."""
        size = 4 * math.prod(shape)
        memory = self._piece(coarser(size)) if self._register and size >= LEAST_BYTES else None
        if memory is None:
            return np.empty(shape, np.float32)
        lease = _Lease(memory, shape)
        weakref.finalize(lease, self._give_back, memory)
        return np.asarray(lease)

    def _piece(self, size: int) -> NDArray[np.uint8] | None:
        with self._lock:
            if pieces := self._free.get(size):
                return pieces.pop()
            if self._register is None or self.locked_bytes + size > MOST_BYTES:
                return None
            memory = np.empty(size, np.uint8)
            if error := self._register(memory.ctypes.data, size):
                _log.warning("CUDA cannot page-lock host memory (error %d): copies are slow", error)
                self._register = None
                return None
            self.locked_bytes += size
            return memory

    def _give_back(self, memory: NDArray[np.uint8]) -> None:
        # a finaliser may run at any allocation, also of a thread that holds the lock
        self._free.setdefault(memory.size, []).append(memory)


def cuda_register(cuda_version: str) -> Register:
    """Return `cudaHostRegister` of the CUDA runtime that ONNX Runtime has loaded.

    https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html
    """
    library = ctypes.CDLL(f"libcudart.so.{cuda_version.partition('.')[0]}")
    register = library.cudaHostRegister
    register.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]

    def registered(address: int, size: int) -> int:
        error: int = register(address, size, 0)
        return error

    return registered
