"""Models that are loaded, swapped, unloaded, damaged, wrong and too large under requests.

Each version of each model of `swaps` has vectors of its own size, so that a reply shows which
version computed it. A request may be answered by the version that served when it was sent, by the
one that served when it was answered, or by one between; a reply of any other version is wrong.
`loads` has the real engine: memory, time, and versions that are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.harness.service import default_artifact
from model.artifact.manifest import GOLDEN, MANIFEST
from testing.client import Reply, ask, request
from testing.clients import Clients, Judge
from trials.gates import Gate, Scale, at_least, at_most, exactly
from trials.servers import Probes, Service, probing, serve

CONNECTIONS, MODELS, VERSIONS, SEED = 64, 5, (1, 2), 11
UNTOUCHED = "m4"
"""Model that no command names, whose latency shows what the commands cost the others."""
ADMIN = {"authorization": "Bearer admin"}
TEXTS = ["the water", "people find work", "a long day", "her first house"]
BUSY, GONE = 409, 404
"""Statuses of commands for a model that a request is loading, and for one that is not loaded."""
HUGE, BUDGET_BYTES = "huge", 8 * 2**30
"""Model whose batches exceed the memory budget, and the budget, which holds all others."""
SLOWER = 1.5
SILENT_MS = 100.0
GROWTH = 1.05


def size_of(model: int, version: int) -> int:
    """Return the size of a version's vectors, different from all others."""
    return 12 * (2 + 2 * model + version)


@dataclass
class Served:
    """Versions that may answer for a model, and the replies so far."""

    allowed: set[int]
    current: int
    changed: float = 0.0
    """`time.monotonic()` of the last end of a command."""
    before: int | None = None
    """Version that may still answer requests that were sent before `changed`."""

    def may_answer(self, version: int, sent: float) -> bool:
        """Return whether a version may answer a request that was sent at a time."""
        return version in self.allowed or (version == self.before and sent <= self.changed)


class Load:
    """Clients that ask all models without pause."""

    def __init__(self, port: int, served: dict[str, Served]) -> None:
        self.served = served
        self.clients = Clients(port, self._requests())
        self._seconds: list[tuple[str, float, float]] = []
        """Model, time of sending and seconds of each request."""
        self._known: dict[tuple[object, ...], object] = {}
        """Fingerprint of each version, and vector of each text by it."""

    def p99(self, begin: float, end: float) -> float:
        """Return the 99th percentile of the untouched model's seconds, of requests of a time."""
        times = [s for name, at, s in self._seconds if name == UNTOUCHED and begin <= at < end]
        return float(np.percentile(times, 99))

    def _requests(self) -> Iterator[tuple[bytes, Judge]]:
        chance = random.Random(SEED)
        while True:
            name, text = chance.choice(list(self.served)), chance.choice(TEXTS)
            body = {"inputs": text, "outputs": ["pooled"], "model": name, "normalize": False}
            yield request("/encode", body), partial(self._judge, name, text, time.monotonic())

    def _judge(self, name: str, text: str, sent: float, reply: Reply) -> str:
        self._seconds.append((name, sent, time.monotonic() - sent))
        if reply.status != 200:
            return f"status {reply.status}"
        content = reply.json()
        vector = content["results"][0]["pooled"]
        versions = [v for v in VERSIONS if size_of(int(name[1:]), v) == len(vector)]
        if content["model"] != name or not versions:
            return "another model"
        (version,) = versions
        if not self.served[name].may_answer(version, sent):
            return "another version"
        fingerprint = reply.header("x-model-fingerprint")
        if self._known.setdefault((name, version), fingerprint) != fingerprint:
            return "another fingerprint"
        if self._known.setdefault((name, version, text), vector) != vector:
            return "another vector"
        return "right"


@contextlib.contextmanager
def repository(manifests: dict[str, dict[str, Any]]) -> Iterator[Path]:
    """Yield a repository of copies of the default artifact, with changes of their manifests.

    Args:
        manifests: changes of each version's manifest, by its folder; of its config, `config`.

    """
    source = default_artifact().folder
    with tempfile.TemporaryDirectory() as name:
        for place, changes in manifests.items():
            folder = Path(name) / place
            shutil.copytree(source, folder, copy_function=_linked)
            manifest = json.loads((folder / MANIFEST).read_bytes())
            manifest |= changes | {"config": manifest["config"] | changes.get("config", {})}
            _replace(folder / MANIFEST, json.dumps(manifest).encode())
        yield Path(name)


def _linked(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def _replace(path: Path, content: bytes) -> None:
    """Write a file in place of a link, of which the other versions have the same file."""
    path.unlink()
    path.write_bytes(content)


def sized_versions() -> dict[str, dict[str, Any]]:
    """Return the manifests of all models, for engines that compute nothing."""
    places = itertools.product(range(MODELS), VERSIONS)
    sizes = {f"m{model}/{version}": size_of(model, version) for model, version in places}
    manifests = {place: {"config": {"hidden_size": size}} for place, size in sizes.items()}
    return {**manifests, HUGE: {"config": {"intermediate_size": 10**7}}}


async def command(port: int, path: str, **parameters: object) -> int:
    """Send a command, and return its status."""
    path = f"/v2/repository/models/{path}"
    return (await ask(port, path, {"parameters": parameters}, **ADMIN)).status


async def swap(port: int, load: Load, name: str) -> int:
    """Swap a model's version while it is used."""
    served = load.served[name]
    new = next(version for version in VERSIONS if version != served.current)
    served.allowed.add(new)
    status = await command(port, f"{name}/load", version=str(new))
    if status == 200:
        served.before, served.current = served.current, new
        served.changed, served.allowed = time.monotonic(), {new}
    return status


async def damaged(port: int, root: Path, name: str, version: int) -> int:
    """Load a version with a damaged file; return the status."""
    graph = next((root / name / str(version)).glob("*.onnx"))
    whole = graph.read_bytes()
    _replace(graph, whole[:-1])
    try:
        return await command(port, f"{name}/load", version=str(version))
    finally:
        graph.write_bytes(whole)


async def swaps(scale: Scale) -> list[Gate]:
    """Swap, unload, damage and load again."""
    rounds, quiet, probes = scale.of(120, 2), scale.of(30, 1), Probes()
    with repository(sized_versions()) as root:
        flags = ["--engine", "fake", "--models", str(root), "--admin-keys", "admin"]
        async with serve(*flags, "--memory-budget", str(BUDGET_BYTES)) as service:
            load = Load(service.port, {f"m{n}": Served({2}, 2) for n in range(MODELS)})
            for name in load.served:
                await command(service.port, f"{name}/load")
            async with load.clients.running(CONNECTIONS):
                began = time.monotonic()
                await asyncio.sleep(quiet)
                changing = time.monotonic()
                async with probing(service, probes, pause=0.02):
                    statuses, grown = await _rounds(service, load, root, rounds)
                ended = time.monotonic()
    ratio = load.p99(changing, ended) / load.p99(began, changing)
    growth, outcomes = GROWTH * scale.slack, load.clients.outcomes
    return [
        exactly("outcomes of requests", {"right"}, set(outcomes)),
        at_least("… requests answered", scale.of(100_000, 100), outcomes["right"]),
        exactly("unexpected statuses of swaps", set(), statuses["swap"] - {200, BUSY}),
        exactly("… of unloads", set(), statuses["unload"] - {200, BUSY, GONE}),
        exactly("… of loads of a damaged version", set(), statuses["damaged"] - {400, BUSY}),
        exactly("… of loads beyond the memory budget", {507}, statuses["huge"]),
        at_most("p99 of the untouched model, × before", SLOWER * scale.slack, ratio),
        *probes.gates("", SILENT_MS * scale.slack),
        at_most("memory after the last tenth of commands, × the first", growth, grown),
    ]


async def _rounds(
    service: Service, load: Load, root: Path, rounds: int
) -> tuple[dict[str, set[int]], float]:
    """Return the statuses of each command, and the growth of memory."""
    statuses: dict[str, set[int]] = {name: set() for name in ("swap", "unload", "damaged", "huge")}
    chance, sizes = random.Random(SEED), list[int]()
    names = [name for name in load.served if name != UNTOUCHED]
    for _ in range(rounds):
        statuses["swap"].add(await swap(service.port, load, chance.choice(names)))
        statuses["unload"].add(await command(service.port, f"{chance.choice(names)}/unload"))
        name = chance.choice(names)
        other = next(v for v in VERSIONS if v != load.served[name].current)
        statuses["damaged"].add(await damaged(service.port, root, name, other))
        statuses["huge"].add(await command(service.port, f"{HUGE}/load"))
        sizes.append(service.resident_bytes())
    tenth = max(1, rounds // 10)
    return statuses, float(np.median(sizes[-tenth:]) / np.median(sizes[tenth - 1 : 2 * tenth]))


NAME, GOOD, WRONG = "m", ("1", "2"), "3"
"""Model of `loads`, its versions that work, and the version with wrong golden texts."""
CLIENTS = 8
EARLY, WINDOW = 20, 5
"""Number of loads after which memory may only grow by `GROWTH`, and number of the last loads whose
median memory counts."""
FIRST_REPLY_SECONDS = 5.0
BODY = {"inputs": "people find work", "outputs": ["pooled"], "model": NAME}


@contextlib.asynccontextmanager
async def serving_versions() -> AsyncIterator[Service]:
    """Serve two equal versions of a model, and one with wrong golden texts."""
    manifests = {f"{NAME}/{one}": {"model": f"{NAME}@{one}"} for one in (*GOOD, WRONG)}
    with repository(manifests) as root:
        golden, path = root / NAME / WRONG / GOLDEN, root / NAME / WRONG / MANIFEST
        tensors = load_file(golden)
        golden.unlink()
        save_file({name: _other(tensor) for name, tensor in tensors.items()}, golden)
        manifest, content = json.loads(path.read_bytes()), golden.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        manifest["files"][GOLDEN].update(sha256=digest, bytes=len(content))
        path.write_text(json.dumps(manifest), encoding="utf-8")
        async with serve("--models", str(root), "--admin-keys", "admin") as service:
            yield service


def _other(tensor: np.ndarray) -> np.ndarray:
    return tensor + np.float32(0.5) if tensor.dtype == np.float32 else tensor


def fingerprint(reply: Reply) -> str:
    """Return the fingerprint of the model that has answered, or the status of an error."""
    found = reply.header("x-model-fingerprint")
    return str(found) if reply.status == 200 else f"status {reply.status}"


async def wrong_golden(scale: Scale) -> list[Gate]:
    """Swap under requests between versions, one of which has wrong golden texts."""
    refused, swapped = set[int](), set[int]()
    async with serving_versions() as service:
        load = Clients(service.port, itertools.repeat((request("/encode", BODY), fingerprint)))
        await command(service.port, f"{NAME}/load", version=GOOD[0])
        async with load.running(CLIENTS):
            for number in range(scale.of(10, 1)):
                refused.add(await command(service.port, f"{NAME}/load", version=WRONG))
                version = GOOD[(number + 1) % 2]
                swapped.add(await command(service.port, f"{NAME}/load", version=version))
                await asyncio.sleep(0.2)
    failed = {one for one in load.outcomes if one.startswith(("lost", "refused", "status"))}
    return [
        exactly("loads of a version with wrong golden texts: statuses", {400}, refused),
        exactly("… swaps between the others", {200}, swapped),
        exactly("… requests lost or refused", set(), failed),
        exactly("… fingerprints of the replies", len(GOOD), len(load.outcomes) - len(failed)),
    ]


async def loads(scale: Scale) -> list[Gate]:
    """Swap to a wrong version; then load, ask and unload a model again and again."""
    gates, count = await wrong_golden(scale), scale.of(200, 2)
    sizes, seconds = list[int](), list[float]()
    async with serving_versions() as service:
        for number in range(count):
            began = time.monotonic()
            assert await command(service.port, f"{NAME}/load", version=GOOD[number % 2]) == 200
            assert (await ask(service.port, "/encode", BODY)).status == 200
            seconds.append(time.monotonic() - began)
            await command(service.port, f"{NAME}/unload")
            await _unloaded(service)
            sizes.append(service.resident_bytes())
    early, last = (statistics.median(part[-WINDOW:]) for part in (sizes[:EARLY], sizes))
    name, first = (
        f"memory without the model after {count} loads, × after {EARLY}",
        FIRST_REPLY_SECONDS,
    )
    reply = statistics.median(seconds)
    return [
        *gates,
        at_most(name, GROWTH * scale.slack, last / early),
        at_most("from the command to the first reply, median", first * scale.slack, reply, " s"),
    ]


async def _unloaded(service: Service) -> None:
    """Wait until the service has released all versions."""
    while True:
        index = (await ask(service.port, "/v2/repository/index", {}, **ADMIN)).json()
        if {one["state"] for one in index} == {"UNAVAILABLE"}:
            return
        await asyncio.sleep(0.02)
