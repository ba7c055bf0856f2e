"""The CUDA driver, errors after which a process cannot use a device, and attention kernels.

ONNX Runtime selects attention kernels at each call by the GPU, the sizes and the type, and reports
them only on standard output, for sessions that are created while an environment variable is set
(`contrib_ops/cuda/bert/attention_kernel_options.cc`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from model.errors import ProviderError

_DRIVER = "libcuda.so.1"
_NO_DEVICE = 100
_STICKY = re.compile(
    r"\bCUDA (?:failure|error)\W{1,2}"
    r"(?:46|100|214|220|226|700|702|710|71[4-9]|802|810|911|999)\b"
    r"|illegal memory access|device-side assert|unspecified launch failure|misaligned address"
    r"|illegal instruction|uncorrectable|unrecoverable"
    r"|CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|NOT_INITIALIZED)"
    r"|CUDNN_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)",
    re.IGNORECASE,
)
"""Errors after which every further CUDA call of the process fails, by CUDA's documentation of
`cudaError`. An out-of-memory error is not among them."""


def device_count() -> int:
    """Return the number of devices that the driver finds; 0 without a driver, or with a broken one.

    `check` distinguishes these cases.
    """
    try:
        return _count(_driver())
    except ProviderError:
        return 0


def check(device_id: int, cuda_version: str) -> None:
    """Raise an error if the driver lacks the device, or cannot run libraries of a CUDA version."""
    driver = _driver()
    count = _count(driver)
    if count == 0:
        raise ProviderError("device cuda: the NVIDIA driver sees no device")
    if device_id >= count:
        raise ProviderError(f"device cuda: there is no device {device_id}, only {count} from 0")
    version = ctypes.c_int(0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    supported, needed = version.value // 1000, int(cuda_version.partition(".")[0])
    if supported < needed:
        raise ProviderError(
            f"device cuda: the NVIDIA driver is for CUDA {supported}, {needed} is needed"
        )


def unloadable(libraries: Sequence[str | Path]) -> str | None:
    """Return the error of the first library that cannot be loaded, or whose dependencies cannot."""
    for library in libraries:
        try:
            ctypes.CDLL(str(library))
        except OSError as error:
            return str(error)
    return None


def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(_DRIVER)
    except OSError as error:
        raise ProviderError(f"device cuda: there is no NVIDIA driver: {error}") from None


def _count(driver: ctypes.CDLL) -> int:
    count = ctypes.c_int(0)
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code not in (0, _NO_DEVICE):
        raise ProviderError(f"device cuda: the NVIDIA driver fails with error {code}")
    return count.value


def is_lost(message: str) -> bool:
    """Return whether an error means that this process can no longer use the device."""
    return _STICKY.search(message) is not None


_VARIABLE = "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"
_LINE = re.compile(rb"Operator=\S+.* SdpaKernel=(\w+)")
_OWN = re.compile(rb"Operator=\S+.* SdpaKernel=|AttentionKernelOptions:")
_one_at_a_time = threading.Lock()
UNFUSED = "MATH"
"""Name of the kernels that store all attention weights."""


def selected_kernels(compute: Callable[[], object]) -> tuple[str, ...]:
    """Return the names of the kernels that a function's new sessions use, in alphabetical order.

    Other lines on standard output are written once the function has ended.
    """
    with _one_at_a_time, tempfile.TemporaryFile() as file:
        try:
            with _reported_to(file):
                compute()
        finally:
            file.seek(0)
            lines = file.readlines()
            os.write(1, b"".join(line for line in lines if not _OWN.search(line)))
    names = {match[1].decode() for line in lines if (match := _LINE.search(line))}
    return tuple(sorted(names))


@contextlib.contextmanager
def _reported_to(file: IO[bytes]) -> Iterator[None]:
    """Redirect standard output, also of libraries in C++, while new sessions report kernels."""
    sys.stdout.flush()
    before, kept = os.environ.get(_VARIABLE), os.dup(1)
    os.environ[_VARIABLE] = "1"
    try:
        os.dup2(file.fileno(), 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
        del os.environ[_VARIABLE]
        if before is not None:
            os.environ[_VARIABLE] = before
