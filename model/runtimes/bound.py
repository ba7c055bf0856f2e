"""ONNX Runtime sessions bound to a device, the state of the device, and page-locked host memory.

A copy from a device into page-locked memory runs at the bus's rate. Into ordinary memory it is
split into pieces by the driver, and new memory also has to be mapped page by page.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from model.errors import DeviceLostError
from model.numerics.batch import coarser
from model.runtimes import cuda
from model.runtimes.contract import Array, Floats, Session

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
    return lambda address, size: register(address, size, 0)


@dataclass(frozen=True)
class Place:
    """Device of tensors."""

    kind: Literal["cpu", "cuda"]
    index: int = 0


class Watch:
    """State of a device, which is lost for good with the first error that means so."""

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.alive = True

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Raise `DeviceLostError` for an error that means a lost device, and in all later calls."""
        if not self.alive:
            raise DeviceLostError(f"{self.provider}: the device was lost")
        try:
            yield
        except Exception as error:  # onnxruntime's exceptions share no base class
            if not cuda.is_lost(str(error)):
                raise
            self.alive = False
            raise DeviceLostError(f"{self.provider}: the device was lost") from error


class Watched:
    """Session whose calls a watch observes; its inputs and outputs are on the host."""

    def __init__(self, session: Session, watch: Watch) -> None:
        self._session, self._watch = session, watch
        self.get_providers = session.get_providers

    def run(self, names: Sequence[str], feed: Mapping[str, Array]) -> list[Floats]:
        """Return the outputs with these names."""
        with self._watch():
            return self._session.run(names, feed)


class Bound:
    """Session with inputs on host or device, and outputs on the device."""

    def __init__(self, session: Any, place: Place, watch: Watch, memory: HostMemory) -> None:
        self._session = session
        self._memory = memory
        self._place = place
        self.watch = watch

    def keep(self, feed: Mapping[str, object], outputs: Sequence[str]) -> list[object]:
        """Run the graph; the outputs stay on the device, as `OrtValue`."""
        with self.watch():
            binding = self._binding(feed)
            for name in outputs:
                binding.bind_output(name, self._place.kind, self._place.index)
            self._session.run_with_iobinding(binding)
            return binding.get_outputs()

    def fetch(self, feed: Mapping[str, object], output: str, shape: tuple[int, ...]) -> Floats:
        """Run the graph, and copy one float32 output of this shape into host memory."""
        array = self._memory.take(shape)
        with self.watch():
            binding = self._binding(feed)
            binding.bind_output(output, "cpu", 0, np.float32, shape, array.ctypes.data)
            self._session.run_with_iobinding(binding)
        return array

    def _binding(self, feed: Mapping[str, object]) -> Any:
        binding = self._session.io_binding()
        for name, value in feed.items():
            if isinstance(value, np.ndarray):
                binding.bind_cpu_input(name, np.ascontiguousarray(value))
            else:
                binding.bind_ortvalue_input(name, value)
        return binding
