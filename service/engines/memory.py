"""Detection of a runtime's out-of-memory errors, and the service's error for them."""

from __future__ import annotations

import re

from service.errors import EngineOutOfMemory

OUT_OF_MEMORY = "OutOfMemoryError"
"""Answer of the PyTorch process to a batch that does not fit into memory."""
_EXHAUSTED = re.compile(
    r"failed to allocate memory|bad[ _]alloc|out of memory|can't allocate memory"
    r"|cannot allocate memory|available memory of \d+ is smaller|_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
"""Messages of ONNX Runtime's arenas, std::bad_alloc, CUDA's libraries, PyTorch's allocators."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether a runtime's error means exhausted memory."""
    return isinstance(error, MemoryError) or _EXHAUSTED.search(str(error)) is not None


def out_of_memory(provider: str) -> EngineOutOfMemory:
    """Return the error for the client, which may retry with fewer texts."""
    return EngineOutOfMemory(f"{provider} has no memory for the batch", retry_after_seconds=1)
