"""A service of two workers, as its own command starts it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from testing.process import Service, clean_environment


@contextlib.contextmanager
def launched(artifact: Path) -> Iterator[Service]:
    flags = ["--workers", "2", "--engine", "fake", "--log-level", "error"]
    environment = clean_environment(TMPDIR=str(artifact.parent))
    with Service.of_headscope(
        *flags, "--artifact", str(artifact), environment=environment
    ) as service:
        service.wait_until_ready()
        yield service
