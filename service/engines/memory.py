"""Recognition of errors that mean that memory ran out."""

from __future__ import annotations

import re

from service.errors import EngineOutOfMemory

OUT_OF_MEMORY = "OutOfMemoryError"
"""What the PyTorch process answers to a batch that there was no memory for."""
_SAYS = re.compile(
    r"failed to allocate memory|bad[ _]alloc|out of memory|can't allocate memory"
    r"|cannot allocate memory|available memory of \d+ is smaller|_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
"""ONNX Runtime's arenas, C++'s std::bad_alloc, CUDA and its libraries, PyTorch's allocators."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error of a runtime means that memory ran out."""
    return isinstance(error, MemoryError) or _SAYS.search(str(error)) is not None


def out_of_memory(provider: str) -> EngineOutOfMemory:
    """The error for callers: fewer texts at once may fit."""
    return EngineOutOfMemory(f"{provider} has no memory for the batch", retry_after_seconds=1)
