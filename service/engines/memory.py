"""Errors of runtimes that mean exhausted memory, and the service's own for them."""

from __future__ import annotations

import re

from service.errors import EngineOutOfMemory

OUT_OF_MEMORY = "OutOfMemoryError"
"""Answer of the PyTorch process to a batch without memory for it."""
_EXHAUSTED = re.compile(
    r"failed to allocate memory|bad[ _]alloc|out of memory|can't allocate memory"
    r"|cannot allocate memory|available memory of \d+ is smaller|_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
"""ONNX Runtime's arenas, C++'s std::bad_alloc, CUDA and its libraries, PyTorch's allocators."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error of a runtime means exhausted memory."""
    return isinstance(error, MemoryError) or _EXHAUSTED.search(str(error)) is not None


def out_of_memory(provider: str) -> EngineOutOfMemory:
    """The error for a caller, who may try again with fewer texts."""
    return EngineOutOfMemory(f"{provider} has no memory for the batch", retry_after_seconds=1)
