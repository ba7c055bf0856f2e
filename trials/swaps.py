"""Models that are loaded, swapped, unloaded, damaged and too large under 64 connections.

Each version of each model has vectors of its own size, so that a reply shows which version computed
it. A request may be answered by the version that served when it was sent, by the one that served
when it was answered, or by one between; a reply of any other version is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.harness.service import default_artifact
from model.artifact.manifest import MANIFEST
from testing.client import Connection, Lost, Reply, request
from trials.gates import Gate, Scale, at_least, at_most, exactly, main
from trials.servers import Service, serve

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
SILENT_SECONDS = 0.1
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


@dataclass
class Load:
    """Clients that ask all models without pause."""

    port: int
    served: dict[str, Served]
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[tuple[str, float, float]] = field(default_factory=list)
    """Model, time of sending and seconds of each request."""
    stopping: bool = False
    _vectors: dict[tuple[str, int, str], bytes] = field(default_factory=dict)
    _fingerprints: dict[tuple[str, int], str | None] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all clients during the block; at the end each waits for its last reply."""
        async with asyncio.TaskGroup() as group:
            for number in range(CONNECTIONS):
                group.create_task(self._client(random.Random(number)))
            yield
            self.stopping = True

    def p99(self, begin: float, end: float) -> float:
        """Return the 99th percentile of the untouched model's seconds, of requests of a time."""
        times = [s for name, at, s in self.seconds if name == UNTOUCHED and begin <= at < end]
        return float(np.percentile(times, 99))

    async def _client(self, chance: random.Random) -> None:
        while not self.stopping:
            with contextlib.suppress(OSError):
                async with await Connection.to(self.port) as connection:
                    await self._use(connection, chance)

    async def _use(self, connection: Connection, chance: random.Random) -> None:
        while not self.stopping:
            name, text = chance.choice(list(self.served)), chance.choice(TEXTS)
            body = {"inputs": text, "outputs": ["pooled"], "model": name, "normalize": False}
            sent = time.monotonic()
            try:
                reply = await connection.ask(request("/encode", body))
            except Lost:
                self.outcomes["lost"] += 1
                return
            self.seconds.append((name, sent, time.monotonic() - sent))
            self.outcomes[self._judge(name, text, sent, reply)] += 1
            if reply.closes:
                return

    def _judge(self, name: str, text: str, sent: float, reply: Reply) -> str:
        if reply.status != 200:
            return f"status {reply.status}"
        content = reply.json()
        vector, served = content["results"][0]["pooled"], self.served[name]
        versions = [v for v in VERSIONS if size_of(int(name[1:]), v) == len(vector)]
        if content["model"] != name or not versions:
            return "another model"
        (version,) = versions
        if not served.may_answer(version, sent):
            return "another version"
        fingerprint = reply.header("x-model-fingerprint")
        if self._fingerprints.setdefault((name, version), fingerprint) != fingerprint:
            return "another fingerprint"
        packed = np.array(vector, np.float32).tobytes()
        if self._vectors.setdefault((name, version, text), packed) != packed:
            return "another vector"
        return "right"


@contextlib.contextmanager
def repository() -> Iterator[Path]:
    """Yield a repository of all models, for engines that compute nothing."""
    source = default_artifact().folder
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for model, version in itertools.product(range(MODELS), VERSIONS):
            place = root / f"m{model}" / str(version)
            shutil.copytree(source, place, copy_function=_linked)
            manifest = json.loads((place / MANIFEST).read_bytes())
            manifest["config"]["hidden_size"] = size_of(model, version)
            (place / MANIFEST).unlink()
            (place / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        huge = Path(shutil.copytree(place, root / HUGE))
        manifest["config"]["intermediate_size"] = 10**7
        (huge / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        yield root


def _linked(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


async def command(port: int, path: str, **parameters: object) -> int:
    """Send a command, and return its status."""
    content = request(f"/v2/repository/models/{path}", {"parameters": parameters}, ADMIN)
    async with await Connection.to(port) as connection:
        return (await connection.ask(content)).status


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
    graph.unlink()  # the other versions are links to the same file
    graph.write_bytes(whole[:-1])
    try:
        return await command(port, f"{name}/load", version=str(version))
    finally:
        graph.write_bytes(whole)


async def silence(port: int, stop: asyncio.Event) -> float:
    """Return the longest seconds of a liveness probe, over one connection, until an event."""
    longest = 0.0
    async with await Connection.to(port) as connection:
        while not stop.is_set():
            began = time.monotonic()
            await connection.ask(request("/health/live"))
            longest = max(longest, time.monotonic() - began)
            await asyncio.sleep(0.02)
    return longest


async def commands(scale: Scale) -> list[Gate]:
    """Swap, unload, damage and load again."""
    rounds, quiet = scale.of(120, 2), scale.of(30, 1)
    with repository() as root:
        flags = ["--engine", "fake", "--models", str(root), "--admin-keys", "admin"]
        async with serve(*flags, "--memory-budget", str(BUDGET_BYTES)) as service:
            load = Load(service.port, {f"m{n}": Served({2}, 2) for n in range(MODELS)})
            for name in load.served:
                await command(service.port, f"{name}/load")
            async with load.running():
                began = time.monotonic()
                await asyncio.sleep(quiet)
                changing = time.monotonic()
                statuses, grown, longest = await _rounds(service, load, root, rounds)
                ended = time.monotonic()
    wrong = {name for name in load.outcomes if name != "right"}
    before, during = load.p99(began, changing), load.p99(changing, ended)
    return [
        exactly("outcomes of requests", set(), wrong),
        at_least("… requests answered", scale.of(100_000, 100), load.outcomes["right"]),
        exactly("unexpected statuses of swaps", set(), statuses["swap"] - {200, BUSY}),
        exactly("… of unloads", set(), statuses["unload"] - {200, BUSY, GONE}),
        exactly("… of loads of a damaged version", set(), statuses["damaged"] - {400, BUSY}),
        exactly("… of loads beyond the memory budget", {507}, statuses["huge"]),
        at_most("p99 of the untouched model, × before", SLOWER * scale.slack, during / before),
        at_most("longest liveness probe", SILENT_SECONDS * scale.slack, longest, " s"),
        at_most(
            "memory after the last tenth of commands, × the first", GROWTH * scale.slack, grown
        ),
    ]


async def _rounds(
    service: Service, load: Load, root: Path, rounds: int
) -> tuple[dict[str, set[int]], float, float]:
    """Return the statuses of each command, the growth of memory, and the longest probe."""
    statuses: dict[str, set[int]] = {name: set() for name in ("swap", "unload", "damaged", "huge")}
    chance, sizes, stop = random.Random(SEED), list[int](), asyncio.Event()
    probing = asyncio.create_task(silence(service.port, stop))
    names = [name for name in load.served if name != UNTOUCHED]
    for _ in range(rounds):
        statuses["swap"].add(await swap(service.port, load, chance.choice(names)))
        statuses["unload"].add(await command(service.port, f"{chance.choice(names)}/unload"))
        name = chance.choice(names)
        other = next(v for v in VERSIONS if v != load.served[name].current)
        statuses["damaged"].add(await damaged(service.port, root, name, other))
        statuses["huge"].add(await command(service.port, f"{HUGE}/load"))
        sizes.append(service.resident_bytes())
    stop.set()
    tenth = max(1, rounds // 10)
    grown = float(np.median(sizes[-tenth:]) / np.median(sizes[tenth - 1 : 2 * tenth]))
    return statuses, grown, await probing


def run(scale: Scale) -> list[Gate]:
    """Return the gates of the trial."""
    return asyncio.run(commands(scale))


if __name__ == "__main__":
    main(__doc__, swaps=run)
