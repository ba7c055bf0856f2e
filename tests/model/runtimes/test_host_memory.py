"""Memory for arrays from a device is page-locked once, and used again when nothing views it."""

from __future__ import annotations

import gc
import logging

import numpy as np
import pytest

from model.runtimes import bound
from model.runtimes.bound import HostMemory

SHAPE = (3, 128, 128)


class Locks:
    """Stand-in for CUDA's function, which records what it page-locks."""

    def __init__(self, error: int = 0) -> None:
        self.calls: list[tuple[int, int]] = []
        self.error = error

    def __call__(self, address: int, size: int) -> int:
        self.calls.append((address, size))
        return self.error


def test_memory_is_used_again_once_no_view_is_left() -> None:
    locks = Locks()
    memory = HostMemory(locks)
    first = memory.take(SHAPE)
    address = first.ctypes.data
    first[:] = 7
    part = first[1:].reshape(-1)[5:]
    del first
    gc.collect()
    second = memory.take(SHAPE)
    assert second.ctypes.data != address
    second[:] = 0
    assert set(part.tolist()) == {7.0}
    del part
    gc.collect()
    assert memory.take(SHAPE).ctypes.data == address
    assert len(locks.calls) == 2
    assert memory.locked_bytes == sum(size for _, size in locks.calls)


def test_arrays_are_writable_float32_of_the_shape() -> None:
    array = HostMemory(Locks()).take(SHAPE)
    assert (array.shape, array.dtype, array.flags.writeable) == (SHAPE, np.float32, True)
    assert array.flags.c_contiguous


def test_small_arrays_and_memory_beyond_the_limit_are_ordinary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    locks = Locks()
    memory = HostMemory(locks)
    assert memory.take((10, 10)).flags.owndata
    monkeypatch.setattr(bound, "MOST_BYTES", 300_000)
    kept = [memory.take(SHAPE) for _ in range(3)]
    assert [array.flags.owndata for array in kept] == [False, True, True]
    assert len(locks.calls) == 1


def test_without_a_device_all_memory_is_ordinary() -> None:
    assert HostMemory(None).take(SHAPE).flags.owndata


def test_a_refusal_to_lock_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    locks = Locks(error=2)
    memory = HostMemory(locks)
    with caplog.at_level(logging.WARNING, "headscope"):
        arrays = [memory.take(SHAPE) for _ in range(2)]
    assert all(array.flags.owndata for array in arrays)
    assert len(locks.calls) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "CUDA cannot page-lock host memory (error 2): copies are slow"
    ]
