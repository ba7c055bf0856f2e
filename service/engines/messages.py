"""Messages between the service and its child processes, over a socket pair.

A message is a pickle without its arrays, which follow in one piece: many small arrays are slow to
pickle, and large arrays are sent from where they are and received into their final place.
"""

from __future__ import annotations

import io
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ALIGNED_BYTES = 8
LARGE_BYTES = 2**16
"""Minimum bytes of an array that is not copied before it is sent."""
_SIZES = struct.Struct("<QQQ")
"""Bytes of the arrays' types and shapes, of the pickle, and of the arrays."""


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.arrays: list[Array] = []

    def persistent_id(self, thing: object) -> int | None:
        if type(thing) is not np.ndarray:
            return None
        self.arrays.append(thing)
        return len(self.arrays) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, arrays: Sequence[Array]) -> None:
        super().__init__(file)
        self._arrays = arrays

    def persistent_load(self, number: int) -> Array:
        return self._arrays[number]


def send(connection: socket.socket, message: object) -> None:
    """Send a message.

    Raises:
        TimeoutError: the other end does not read.
        OSError: the other end is closed.

    """
    body = io.BytesIO()
    pickler = _Pickler(body)
    pickler.dump(message)
    arrays = pickler.arrays
    types = pickle.dumps([(array.dtype.str, array.shape) for array in arrays])
    size = sum(array.nbytes + -array.nbytes % ALIGNED_BYTES for array in arrays)
    small = [_SIZES.pack(len(types), body.tell(), size), types, body.getvalue()]
    for array in arrays:
        if array.nbytes < LARGE_BYTES:
            small.append(array.tobytes())
        else:
            connection.sendall(b"".join(small))
            connection.sendall(np.ascontiguousarray(array).data.cast("B"))
            small.clear()
        small.append(bytes(-array.nbytes % ALIGNED_BYTES))
    connection.sendall(b"".join(small))


def receive(connection: socket.socket) -> Any:
    """Return the next message, whose arrays are writable parts of one buffer.

    Raises:
        EOFError: the other end is closed.
        TimeoutError: the rest of the message does not come.

    """
    sizes = _SIZES.unpack(_read(connection, _SIZES.size))
    types, body, buffer = (_read(connection, size) for size in sizes)
    arrays, start = [], 0
    for dtype, shape in pickle.loads(types):  # noqa: S301 - of our own process
        array: Array = np.ndarray(shape, dtype, buffer, start)
        arrays.append(array)
        start += array.nbytes + -array.nbytes % ALIGNED_BYTES
    return _Unpickler(io.BytesIO(body), arrays).load()


def _read(connection: socket.socket, size: int) -> memoryview:
    view = left = np.empty(size, np.uint8).data
    while left:
        received = connection.recv_into(left)
        if not received:
            raise EOFError
        left = left[received:]
    return view
