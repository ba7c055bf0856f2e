"""Processes under trial: the service over a controllable engine, and over the real one."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

from testing import metrics, process
from testing.client import ask
from testing.memory import family, family_bytes, forget_peak
from testing.process import free_port
from trials.stub import Stub

PATIENT = dict.fromkeys(
    ("queue_timeout_seconds", "queue_target_seconds", "request_timeout_seconds"), 86_400.0
)
"""Settings under which no request is refused or cancelled for its waiting time."""
STUB = (sys.executable, "-m", "trials.stub")


class Service(process.Service):
    """Service process with requests in asyncio."""

    async def counts(self) -> dict[str, int]:
        """Return the counters of a stub's engine."""
        return dict((await ask(self.port, "/trial")).json())

    async def metric(self, name: str) -> float:
        """Return the sum of a metric's samples over its labels."""
        text = (await ask(self.port, "/metrics")).body.decode()
        return metrics.total(metrics.samples(text), f"{name} [")

    def resident_bytes(self) -> int:
        """Return the resident memory of the process and its descendants."""
        return family_bytes(self.process.pid, "VmRSS")

    def forget_peak(self) -> None:
        """Measure the peak of memory from now on."""
        for member in family(self.process.pid):
            forget_peak(member)

    def peak_bytes(self) -> int:
        """Return the sum of the peaks of resident memory of the process and its descendants."""
        return family_bytes(self.process.pid, "VmHWM")

    async def end(self, seconds: float = process.STOP_SECONDS) -> int:
        """Wait for the process to end, and return the exit code.

        Raises:
            subprocess.TimeoutExpired: the process does not end in time.

        """
        return await asyncio.to_thread(self.process.wait, seconds)


@contextlib.asynccontextmanager
async def _ready(service: Service, *, wait: bool = True) -> AsyncIterator[Service]:
    with service:
        if wait:
            await asyncio.to_thread(service.wait_until_ready)
        yield service


def stub(
    engine: dict[str, Any] | None = None,
    *,
    models: dict[str, int] | None = None,
    ready: bool = True,
    command: Sequence[str] = STUB,
    **settings: Any,
) -> contextlib.AbstractAsyncContextManager[Service]:
    """Run the service with these settings, over a `TrialEngine` for each model."""
    port = free_port()
    content = Stub(engine=engine or {}, settings={"port": port, **settings}, models=models or {})
    return _ready(Service(command, port, stdin=content.model_dump_json().encode()), wait=ready)


def serve(*flags: str) -> contextlib.AbstractAsyncContextManager[Service]:
    """Run `headscope serve` with these flags."""
    return _ready(Service.of_headscope("--log-level", "error", *flags))
