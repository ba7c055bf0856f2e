"""Names of the attention kernels that ONNX Runtime selects on a GPU.

ONNX Runtime selects them at each call by the GPU, the sizes and the type, and reports them only on
standard output, for sessions that are created while an environment variable is set
(`contrib_ops/cuda/bert/attention_kernel_options.cc`).
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import IO

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
            with _reported(), _standard_output_to(file):
                compute()
        finally:
            file.seek(0)
            lines = file.readlines()
            os.write(1, b"".join(line for line in lines if not _OWN.search(line)))
    names = {match[1].decode() for line in lines if (match := _LINE.search(line))}
    return tuple(sorted(names))


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        del os.environ[_VARIABLE]
        if before is not None:
            os.environ[_VARIABLE] = before


@contextlib.contextmanager
def _standard_output_to(file: IO[bytes]) -> Iterator[None]:
    """Redirect the process's standard output, including the output of libraries in C++."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(file.fileno(), 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
