"""Service of two workers, started by its own command."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from testing.process import Service, clean_environment, free_port

PROGRAM = """
import sys
from service.cli import main
from service.process import supervisor

supervisor.FIRST_PAUSE_SECONDS = min(supervisor.FIRST_PAUSE_SECONDS, {pause})
supervisor.MOST_PAUSE_SECONDS = min(supervisor.MOST_PAUSE_SECONDS, {pause})
supervisor.MOST_FAILED_STARTS = {starts}
sys.exit(main())
"""


@contextlib.contextmanager
def launched(
    artifact: Path, most_pause_seconds: float = 8.0, most_failed_starts: int = 5
) -> Iterator[Service]:
    """The service.

    Args:
        artifact: what it serves.
        most_pause_seconds: after which a worker is started again.
        most_failed_starts: in a row, after which the service ends.

    """
    port = free_port()
    program = PROGRAM.format(pause=most_pause_seconds, starts=most_failed_starts)
    command = [sys.executable, "-c", program, "serve"]
    flags = ["--port", str(port), "--workers", "2", "--engine", "fake", "--log-level", "error"]
    environment = clean_environment(TMPDIR=str(artifact.parent))
    with Service(
        [*command, *flags, "--artifact", str(artifact)], port, environment=environment
    ) as service:
        service.wait_until_ready()
        yield service
