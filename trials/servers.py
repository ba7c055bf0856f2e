"""Starts the processes that trials ask: the service over an engine to steer, and the real one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from trials.stub import Stub
from trials.wire import Lost, ask

START_SECONDS, STOP_SECONDS = 120, 60
PATIENT = {"queue_timeout_seconds": 1e6, "request_timeout_seconds": 1e6}
"""Settings with which nobody is refused or given up for the time that they wait."""


@dataclass
class Service:
    """A process that serves, in a group of its own."""

    process: subprocess.Popen[bytes]
    port: int
    log: IO[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ready(self) -> bool:
        """Whether it says so; a connection that ends is a no."""
        with contextlib.suppress(OSError, Lost):
            return (await ask(self.port, "/health/ready")).status == 200
        return False

    async def until_ready(self) -> None:
        """Wait.

        Raises:
            RuntimeError: it ended instead.
            TimeoutError: it takes too long.

        """
        async with asyncio.timeout(START_SECONDS):
            while not await self.ready():
                if self.process.poll() is not None:
                    self.log.seek(0)
                    raise RuntimeError(f"the service ended: {self.log.read().decode()[-1000:]}")
                await asyncio.sleep(0.05)

    async def counts(self) -> dict[str, int]:
        """What the engine of a stub has done."""
        found: Any = (await ask(self.port, "/trial")).json()
        return dict(found)

    async def metric(self, name: str) -> float:
        """The sum of a metric's samples over its labels."""
        text = (await ask(self.port, "/metrics")).body.decode()
        samples = [s for f in text_string_to_metric_families(text) for s in f.samples]
        return sum(sample.value for sample in samples if sample.name == name)

    def resident_bytes(self) -> int:
        """Memory of the process and its children."""
        process = psutil.Process(self.process.pid)
        members = [process, *process.children(recursive=True)]
        return sum(member.memory_info().rss for member in members)

    async def ended(self, seconds: float = STOP_SECONDS) -> int:
        """Wait for its end; returns the exit code.

        Raises:
            TimeoutError: it does not end.

        """
        async with asyncio.timeout(seconds):
            while (code := self.process.poll()) is None:
                await asyncio.sleep(0.01)
        return code


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def _started(
    command: Sequence[str], port: int, content: bytes, *, ready: bool
) -> AsyncIterator[Service]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADSCOPE_")}
    environment["HF_HUB_OFFLINE"] = "1"
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=log, env=environment, start_new_session=True
        ) as process,
    ):
        assert process.stdin is not None
        try:
            with process.stdin as stdin:
                stdin.write(content)
            service = Service(process, port, log)
            if ready:
                await service.until_ready()
            yield service
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def stub(
    engine: dict[str, Any] | None = None, *, ready: bool = True, **settings: Any
) -> contextlib.AbstractAsyncContextManager[Service]:
    """The service over a `TrialEngine` of these options, with these settings."""
    port = _free_port()
    content = Stub(engine=engine or {}, settings={"port": port, **settings}).model_dump_json()
    return _started([sys.executable, "-m", "trials.stub"], port, content.encode(), ready=ready)


def serve(*flags: str) -> contextlib.AbstractAsyncContextManager[Service]:
    """`headscope serve` with these flags."""
    port = _free_port()
    command = [sys.executable, "-m", "service", "serve", "--port", str(port)]
    command += ["--log-level", "error", *flags]
    return _started(command, port, b"", ready=True)
