"""Loads, swaps and unloads with the real engine: memory, time, and versions that are refused."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.harness.service import default_artifact
from model.artifact.manifest import GOLDEN, MANIFEST
from testing.client import Lost, ask
from trials.gates import Gate, Scale, at_least, at_most, exactly, main
from trials.servers import Service, serve
from trials.swaps import ADMIN, command

NAME, GOOD, WRONG = "m", ("1", "2"), "3"
"""Model of the trial, its versions that work, and the version with wrong golden texts."""
CLIENTS = 8
EARLY, GROWTH = 20, 1.05
"""Number of loads after which memory may only grow by a factor, and the factor."""
WINDOW = 5
"""Number of the last loads whose median memory counts."""
FIRST_REPLY_SECONDS = 5.0
BODY = {"inputs": "people find work", "outputs": ["pooled"], "model": NAME}


@contextlib.contextmanager
def repository(source: Path) -> Iterator[Path]:
    """Yield a repository of two equal versions of a model, and one with wrong golden texts."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for version in (*GOOD, WRONG):
            place = root / NAME / version
            shutil.copytree(source, place)
            manifest = json.loads((place / MANIFEST).read_bytes())
            manifest["model"] = f"{NAME}@{version}"
            if version == WRONG:
                _spoil(place / GOLDEN, manifest["files"][GOLDEN])
            (place / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        yield root


def _spoil(path: Path, record: dict[str, object]) -> None:
    """Change the golden tensors, and record the new file as if it had been exported."""
    tensors = load_file(path)
    save_file({name: _other(tensor) for name, tensor in tensors.items()}, path)
    content = path.read_bytes()
    record.update(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))


def _other(tensor: np.ndarray) -> np.ndarray:
    return tensor + np.float32(0.5) if tensor.dtype == np.float32 else tensor


@contextlib.asynccontextmanager
async def asking(port: int, outcomes: Counter[str]) -> AsyncIterator[None]:
    """Ask for the model by several clients during the block, and count the outcomes."""
    stopping = False

    async def client() -> None:
        while not stopping:
            try:
                reply = await ask(port, "/encode", BODY)
            except (Lost, OSError):
                outcomes["lost"] += 1
                continue
            fingerprint = reply.header("x-model-fingerprint") or ""
            outcomes[fingerprint if reply.status == 200 else f"status {reply.status}"] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())
        yield
        stopping = True


async def wrong_golden(scale: Scale) -> list[Gate]:
    """Swap under requests between versions, one of which has wrong golden texts."""
    rounds, outcomes = scale.of(10, 1), Counter[str]()
    refused, swapped = set[int](), set[int]()
    with repository(default_artifact().folder) as root:
        async with serve("--models", str(root), "--admin-keys", "admin") as service:
            await command(service.port, f"{NAME}/load", version=GOOD[0])
            async with asking(service.port, outcomes):
                for number in range(rounds):
                    refused.add(await command(service.port, f"{NAME}/load", version=WRONG))
                    version = GOOD[(number + 1) % 2]
                    swapped.add(await command(service.port, f"{NAME}/load", version=version))
                    await asyncio.sleep(0.2)
    failed = {name for name in outcomes if name == "lost" or name.startswith("status")}
    return [
        exactly("loads of a version with wrong golden texts: statuses", {400}, refused),
        exactly("… swaps between the others", {200}, swapped),
        exactly("… requests lost or refused", set(), failed),
        exactly("… fingerprints of the replies", len(GOOD), len(outcomes) - len(failed)),
    ]


async def comes_and_goes(scale: Scale) -> list[Gate]:
    """Load, ask and unload a model again and again in one process."""
    loads, sizes, seconds = scale.of(200, 2), list[int](), list[float]()
    with repository(default_artifact().folder) as root:
        async with serve("--models", str(root), "--admin-keys", "admin") as service:
            for number in range(loads):
                seconds.append(await _first_reply(service, GOOD[number % 2]))
                await command(service.port, f"{NAME}/unload")
                await _unloaded(service)
                sizes.append(service.resident_bytes())
    return [
        at_least("loads and unloads", loads, len(seconds)),
        at_most(
            f"… memory without the model after the last, × after {EARLY}",
            GROWTH * scale.slack,
            _median(sizes) / _median(sizes[:EARLY]),
        ),
        at_most(
            "… from the command to the first reply, median",
            FIRST_REPLY_SECONDS * scale.slack,
            statistics.median(seconds),
            " s",
        ),
    ]


def _median(sizes: list[int]) -> float:
    """Return the median of the last values."""
    return statistics.median(sizes[-WINDOW:])


async def _first_reply(service: Service, version: str) -> float:
    began = time.monotonic()
    assert await command(service.port, f"{NAME}/load", version=version) == 200
    assert (await ask(service.port, "/encode", BODY)).status == 200
    return time.monotonic() - began


async def _unloaded(service: Service) -> None:
    """Wait until the service has released all versions."""
    while True:
        index = (await ask(service.port, "/v2/repository/index", {}, **ADMIN)).json()
        if {one["state"] for one in index} == {"UNAVAILABLE"}:
            return
        await asyncio.sleep(0.02)


def run(scale: Scale) -> list[Gate]:
    """Return the gates of both parts."""

    async def both() -> list[Gate]:
        return [*await wrong_golden(scale), *await comes_and_goes(scale)]

    return asyncio.run(both())


if __name__ == "__main__":
    main(__doc__, loads=run)
