"""What every command of this folder begins with: an engine, and steps that are told."""

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
    """Print what is done next, and when."""
    print(f"{time.monotonic() - BEGAN:4.0f} s  {what}", flush=True)


@contextmanager
def opened(storage: Path | None, driver: str) -> Iterator[Engine]:
    """An engine in a folder, by default one that goes with it."""
    if os.geteuid():
        raise EngineError("root is needed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        engine = Engine(storage or Path(folder), driver)
        try:
            engine.install()
            step("making the base image's stand-in")
            engine.make_base()
            yield engine
        finally:
            engine.close()
