"""Checks of the CUDA driver, and detection of errors after which a process cannot use a device."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path

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
