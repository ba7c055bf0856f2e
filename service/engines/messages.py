"""Messages between the service and its child processes, over a socket pair.

A message is a pickle (protocol 5), and the large arrays in it, which are sent from where they are
and received into their final place.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

import numpy as np

LARGE_BYTES = 2**16
"""Minimum bytes of an array that is sent beside the pickle; a smaller one is copied into it."""
_COUNT = struct.Struct("<Q")


def send(connection: socket.socket, message: object) -> None:
    """Send a message.

    Raises:
        TimeoutError: the other end does not read.
        OSError: the other end is closed.

    """
    large: list[memoryview] = []

    def inline(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < LARGE_BYTES:
            return True
        large.append(view)
        return False

    head = pickle.dumps(message, protocol=5, buffer_callback=inline)
    sizes = [len(head), *(view.nbytes for view in large)]
    connection.sendall(_COUNT.pack(len(sizes)) + np.array(sizes, "<u8").tobytes() + head)
    for view in large:
        connection.sendall(view)


def receive(connection: socket.socket) -> Any:
    """Return the next message, whose arrays are writable.

    Raises:
        EOFError: the other end is closed.
        TimeoutError: the rest of the message does not come.

    """
    (count,) = _COUNT.unpack(_read(connection, _COUNT.size))
    sizes = np.frombuffer(_read(connection, 8 * count), "<u8").tolist()
    head, *large = [_read(connection, size) for size in sizes]
    return pickle.loads(head, buffers=large)  # noqa: S301 - of our own process


def _read(connection: socket.socket, size: int) -> memoryview:
    view = left = np.empty(size, np.uint8).data
    while left:
        received = connection.recv_into(left)
        if not received:
            raise EOFError
        left = left[received:]
    return view
