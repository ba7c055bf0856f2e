"""Memory that an export takes, estimated before a checkpoint's weights are read."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from model.errors import CheckpointError
from model.sources.headers import weight_count
from service.system import machine

GIBIBYTE = 2**30
BASE_BYTES = 2**28
"""Bytes of an exporting process without a checkpoint."""
WEIGHT_BYTES = 8
"""Bytes of a weight at the peak of an export, at least: two copies in float32. Measurements are in
docs/checkpoints.md."""


def check_memory(checkpoint: Path, name: str) -> None:
    """Raise an error if the machine has less memory than the export of a checkpoint takes.

    Weights are converted, exported and verified on the host, whatever device serves them.

    Args:
        checkpoint: folder of the checkpoint.
        name: name of the model in the error message.

    Raises:
        ConfigError: the config cannot be read.
        CheckpointError: the export takes more memory than is available.

    """
    count = weight_count(checkpoint)
    needed, available = BASE_BYTES + WEIGHT_BYTES * count, machine.available_memory()
    if available is None or needed <= available:
        return
    raise CheckpointError(
        f"{name} has about {count / 1e9:.1f} billion weights: its export takes at least "
        f"{needed / GIBIBYTE:.1f} GiB of memory on the host, whatever the device, and "
        f"{available / GIBIBYTE:.1f} GiB are available: run `headscope export` on a machine with "
        "more, and serve the result with --artifact"
    )


@contextlib.contextmanager
def one_export(cache: Path) -> Iterator[None]:
    """Wait until no other process exports into a cache, so that `check_memory` holds for each."""
    with (cache / "export.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
