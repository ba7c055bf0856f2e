"""Processes under trial: the service over a controllable engine, and over the real one."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from testing import metrics, process
from testing.client import Lost, ask
from testing.load import Job, Result, generate
from testing.memory import family, family_bytes, forget_peak
from testing.process import free_port
from trials.gates import Gate, Scale, at_most, exactly
from trials.stub import Stub

PATIENT = dict.fromkeys(
    ("queue_timeout_seconds", "queue_target_seconds", "request_timeout_seconds"), 86_400.0
)
"""Settings under which no request is refused or cancelled for its waiting time."""
STUB = (sys.executable, "-m", "trials.stub")
BINARY = {"accept": "application/vnd.safetensors"}
SEED = 1
PROBE_SECONDS = 0.1


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
    bytes_per_float: int | None = None,
    **settings: Any,
) -> contextlib.AbstractAsyncContextManager[Service]:
    """Run the service with these settings, over a `TrialEngine` for each model."""
    port = free_port()
    content = Stub(
        engine=engine or {},
        settings={"port": port, **settings},
        models=models or {},
        bytes_per_float=bytes_per_float,
    )
    return _ready(Service(command, port, stdin=content.model_dump_json().encode()), wait=ready)


def serve(*flags: str) -> contextlib.AbstractAsyncContextManager[Service]:
    """Run `headscope serve` with these flags."""
    return _ready(Service.of_headscope("--log-level", "error", *flags))


@dataclass
class Probes:
    """Results of the liveness probes during a load."""

    failed: int = 0
    latencies_ms: list[float] = field(default_factory=list)

    def gates(self, name: str, longest_ms: float) -> list[Gate]:
        """Return the gates of failures and of the longest silence."""
        longest = max(self.latencies_ms)
        return [
            exactly(f"{name}liveness probes that failed", 0, self.failed),
            at_most(f"{name}longest silence of liveness", longest_ms, longest, " ms"),
        ]


@contextlib.asynccontextmanager
async def meanwhile(*jobs: Awaitable[None]) -> AsyncIterator[None]:
    """Run jobs during the block."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


def probing(
    service: Service, probes: Probes, pause: float = PROBE_SECONDS
) -> contextlib.AbstractAsyncContextManager[None]:
    """Probe liveness during the block, each time over a new connection."""

    async def probe() -> None:
        while True:
            started = time.perf_counter()
            try:
                reply = await ask(service.port, "/health/live")
                probes.failed += reply.status != 200
            except (Lost, OSError):
                probes.failed += 1
            probes.latencies_ms.append(1000 * (time.perf_counter() - started))
            await asyncio.sleep(pause)

    return meanwhile(probe())


def p99(latencies_ms: Sequence[float]) -> float:
    """Return the 99th percentile in ms; infinite without values."""
    return float(np.percentile(latencies_ms, 99)) if latencies_ms else float("inf")


async def load(service: Service, requests: list[tuple[str, object]], **pattern: Any) -> Result:
    """Send requests by a load generator in a process of its own; `pattern` has fields of `Job`."""
    return await asyncio.to_thread(generate, Job(service.port, requests, **pattern))


CANARY = {"inputs": ["The animal didn't cross the street", "because it was too tired", ""]}


@dataclass(frozen=True)
class Canary:
    """Replies to one fixed request, and the memory of a service, at a time."""

    service: Service
    replies: bytes
    resident_bytes: int

    @classmethod
    async def of(cls, service: Service) -> Canary:
        """Send the request to /encode and /attention."""
        replies = [
            (await ask(service.port, path, CANARY)).body for path in ("/encode", "/attention")
        ]
        return cls(service, b"".join(replies), service.resident_bytes())

    async def gates(self, scale: Scale) -> list[Gate]:
        """Return the gates of the same replies, byte for byte, and of the growth of memory."""
        now = await Canary.of(self.service)
        growth = 100 * (now.resident_bytes / self.resident_bytes - 1)
        return [
            exactly("the canary's reply is as before", True, now.replies == self.replies),
            at_most("growth of memory", scale.of(5, 100), growth, " %"),
        ]
