"""Shipped configuration file of Ray Serve with the real engine: it must serve and scale."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from testing.client import ask, request
from testing.clients import Clients
from trials import ray_cluster as ray
from trials.faults import body
from trials.gates import Gate, Scale, at_least, exactly

FILE = "deploy/ray/serve.yaml"
CLIENTS, REPLICAS = 64, 2
SECONDS = 120.0
"""Seconds for the new application to answer, and for it to scale."""
TEXTS = ["the water", "people find work"]


def run(port: int, scale: Scale) -> list[Gate]:
    """Deploy the file to the running Serve, in place of its application."""
    command = [Path(sys.executable).with_name("serve"), "run", "--non-blocking", FILE]
    environment = os.environ | {"RAY_ADDRESS": ray.address()}
    subprocess.run(command, cwd=ray.ROOT, env=environment, capture_output=True, check=True)
    return asyncio.run(_asked(port, scale))


async def _engine(port: int) -> str:
    """Return the engine of the replies once the stub is replaced; empty if that takes too long."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        reply = await ask(port, "/encode", body(TEXTS))
        if reply.status == 200 and reply.json()["backend"] != "fake":
            return str(reply.json()["backend"])
        await asyncio.sleep(0.5)
    return ""


async def _asked(port: int, scale: Scale) -> list[Gate]:
    engine = await _engine(port)
    least = scale.of(REPLICAS, 1)
    load = Clients(
        port,
        [request("/encode", body(TEXTS), {"x-request-id": "load"})],
        lambda _, reply: str(reply.status),
    )
    begun = time.monotonic()
    async with load.running(CLIENTS):
        while (replicas := len(ray.workers(ray.REPLICA))) < least:
            if time.monotonic() > begun + SECONDS:
                break
            await asyncio.sleep(0.5)
        await load.until("200", 1)
    statuses = Counter(load.outcomes)
    return [
        exactly(f"{FILE}: the engine of its replies", "onnx", engine),
        at_least(f"… replicas for {CLIENTS} clients", least, replicas),
        exactly("… statuses", set(), set(statuses) - {"200", "429"}),
    ]
