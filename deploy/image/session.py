"""Start of every command of this folder: an engine, and the printed steps."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.image.engine import Engine, EngineError

BEGAN = time.monotonic()


def step(what: str) -> None:
    """Print the next step, and the seconds since the start."""
    print(f"{time.monotonic() - BEGAN:4.0f} s  {what}", flush=True)


@contextmanager
def opened(storage: Path | None, driver: str) -> Iterator[Engine]:
    """Open an engine in a folder, by default a temporary one, with the base image's stand-in.

    Raises:
        EngineError: the process is not root's, or a command of the engine fails.

    """
    if os.geteuid():
        raise EngineError("buildah needs root: run this command as root")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        engine = Engine(storage or Path(folder), driver)
        try:
            engine.install()
            step("making the base image's stand-in")
            engine.make_base()
            yield engine
        finally:
            engine.close()
