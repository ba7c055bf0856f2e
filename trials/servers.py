"""The processes that trials ask: the service over an engine to steer, and the real one."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

from testing import metrics, process
from testing.client import ask
from testing.memory import family_bytes
from testing.process import free_port
from trials.stub import Stub

PATIENT = dict.fromkeys(
    ("queue_timeout_seconds", "queue_target_seconds", "request_timeout_seconds"), 1e6
)
"""Settings with which nobody is refused or given up for the time that they wait."""
STUB = (sys.executable, "-m", "trials.stub")


class Service(process.Service):
    """A service that is asked from an event loop."""

    async def counts(self) -> dict[str, int]:
        """What the engine of a stub has done."""
        return dict((await ask(self.port, "/trial")).json())

    async def metric(self, name: str) -> float:
        """The sum of a metric's samples over its labels."""
        text = (await ask(self.port, "/metrics")).body.decode()
        return metrics.total(metrics.samples(text), f"{name} [")

    def resident_bytes(self) -> int:
        """Memory of the process and its descendants."""
        return family_bytes(self.process.pid, "VmRSS")

    async def end(self, seconds: float = process.STOP_SECONDS) -> int:
        """Wait for its end; gives the exit code.

        Raises:
            subprocess.TimeoutExpired: it does not end.

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
    """The service over a `TrialEngine` a model of these options, with these settings."""
    port = free_port()
    content = Stub(engine=engine or {}, settings={"port": port, **settings}, models=models or {})
    return _ready(Service(command, port, stdin=content.model_dump_json().encode()), wait=ready)


def serve(*flags: str) -> contextlib.AbstractAsyncContextManager[Service]:
    """`headscope serve` with these flags."""
    return _ready(Service.of_headscope("--log-level", "error", *flags))
