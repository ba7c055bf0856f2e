"""A service of two workers, as its own command starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from service.process.listener import bound


@contextlib.contextmanager
def launched(artifact: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with bound("127.0.0.1", 0) as (listener,):
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "service", "serve", "--workers", "2", "--engine", "fake"]
    command += ["--artifact", str(artifact), "--port", str(port), "--log-level", "error", *flags]
    environment = {**os.environ, "TMPDIR": str(artifact.parent)}
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(600):
                with contextlib.suppress(httpx.TransportError):
                    if httpx.get(f"{url}/health/ready").status_code == 200:
                        break
                time.sleep(0.05)
            yield process, url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
