"""Replicas under Ray Serve: killed and stopped under load, their throughput, and refusals."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from testing.client import HANG_SECONDS, Connection, Lost, request
from trials import ray_cluster as ray
from trials import ray_configured
from trials.faults import body, outcome
from trials.gates import Gate, Scale, at_least, at_most, exactly
from trials.servers import PATIENT

BATCH_SECONDS = 0.05
CAPACITY = 1 / BATCH_SECONDS
"""Texts a second of one replica, at one text a batch."""
ENGINE = {"batch_seconds": BATCH_SECONDS}
ONE_A_BATCH = {"max_batch_tokens": 1, **PATIENT}
LOAD = 0.4
CLEAN_SECONDS, BACK_SECONDS = 10.0, 30.0
SETTLE_SECONDS = 2.0
CLIENTS_A_REPLICA = 8
TEXT = ["the water"]


@dataclass
class Arrivals:
    """Requests that are due at a constant rate, whatever the earlier outcomes (open loop)."""

    port: int
    rate: float
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Prefix of these requests' ids."""
    sent: dict[str, float] = field(default_factory=dict)
    """`time.monotonic()` of sending, by id."""
    answered: dict[str, float] = field(default_factory=dict)
    """`time.monotonic()` of the reply or loss, by id."""
    outcomes: dict[str, str] = field(default_factory=dict)
    """Outcome by id: `right`, `wrong`, `lost` or a status."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send requests during the block, and wait at the end until all have ended."""
        async with asyncio.TaskGroup() as group:
            source = group.create_task(self._source(group))
            yield
            source.cancel()

    async def _source(self, group: asyncio.TaskGroup) -> None:
        begun = time.monotonic()
        for number in itertools.count():
            await asyncio.sleep(begun + number / self.rate - time.monotonic())
            group.create_task(self._ask(f"{self.name}-{number}"))

    async def _ask(self, name: str) -> None:
        self.sent[name] = time.monotonic()
        try:
            async with await Connection.to(self.port) as connection:
                sent = request("/encode", body(TEXT), {"x-request-id": name})
                self.outcomes[name] = outcome(TEXT, await connection.ask(sent))
        except (Lost, OSError):
            self.outcomes[name] = "lost"
        self.answered[name] = time.monotonic()

    def waiting_at(self, moment: float) -> set[str]:
        """Return the ids of requests that were sent before a moment and answered after it."""
        return {name for name, sent in self.sent.items() if sent < moment < self.answered[name]}


@dataclass(frozen=True)
class Kill:
    """Result of killing a replica."""

    lost: set[str]
    in_flight: set[str]
    """Requests that were unanswered as the replica died, and not begun by another replica."""
    outcomes: Counter[str]
    clean_seconds: float
    """Seconds until the last request was sent that was not answered right."""
    back_seconds: float
    """Seconds until two other replicas have answered."""


async def kill_once(port: int, journal: Path) -> Kill:
    """Kill one of two replicas by SIGKILL at 0.4 of their capacity."""
    load = Arrivals(port, LOAD * 2 * CAPACITY)
    async with load.running():
        await asyncio.sleep(SETTLE_SECONDS)
        victim = ray.workers(ray.REPLICA)[0]
        victim.kill()
        killed = time.monotonic()
        back = await _back(journal, victim) - killed
        await asyncio.sleep(SETTLE_SECONDS)
    lost = {name for name, outcome in load.outcomes.items() if outcome != "right"}
    last = max((load.sent[name] for name in lost), default=killed)
    return Kill(
        lost=lost,
        in_flight=load.waiting_at(killed) - ray.begun(journal, besides=victim.pid),
        outcomes=Counter(load.outcomes.values()),
        clean_seconds=max(0.0, last - killed),
        back_seconds=back,
    )


async def _back(journal: Path, victim: psutil.Process) -> float:
    """Return the time at which two other replicas have answered."""
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            pids = {process.pid for process in ray.workers(ray.REPLICA)} - {victim.pid}
            if sum(ray.answered(journal, pid) for pid in pids) == 2:
                return time.monotonic()
            await asyncio.sleep(0.25)


async def killed(port: int, scale: Scale, journal: Path) -> list[Gate]:
    """Kill a replica several times."""
    count = scale.of(10, 1)
    kills = [await kill_once(port, journal) for _ in range(count)]
    lost = sum(len(kill.lost) for kill in kills)
    outcomes = sum((kill.outcomes for kill in kills), Counter[str]())
    clean = max(kill.clean_seconds for kill in kills)
    back = [kill.back_seconds for kill in kills]
    return [
        exactly(
            f"kill -9 of one of two replicas at {LOAD} of capacity ×{count}: lost, but not in "
            "flight on it",
            0,
            sum(len(kill.lost - kill.in_flight) for kill in kills),
        ),
        at_most("… lost of those that were", sum(len(kill.in_flight) for kill in kills), lost),
        at_least("… requests answered", 1, outcomes["right"]),
        at_most("… routing clean after", CLEAN_SECONDS * scale.slack, clean, " s"),
        at_most("… capacity back after", BACK_SECONDS * scale.slack, max(back), " s"),
        at_most("… median", BACK_SECONDS * scale.slack, statistics.median(back), " s"),
    ]


async def stopped(port: int, engine: dict[str, Any], journal: Path) -> list[Gate]:
    """Let Serve stop one of two replicas under load, as autoscaling does."""
    load = Arrivals(port, LOAD * CAPACITY)
    async with load.running():
        await asyncio.sleep(SETTLE_SECONDS)
        await asyncio.to_thread(ray.run_stub, engine, journal, ONE_A_BATCH, num_replicas=1)
        async with asyncio.timeout(HANG_SECONDS):
            while len(ray.workers(ray.REPLICA)) > 1:
                await asyncio.sleep(0.25)
        await asyncio.sleep(SETTLE_SECONDS)
    return [
        exactly("a replica is stopped under load: outcomes", {"right"}, set(load.outcomes.values()))
    ]


async def rate(port: int, replicas: int, seconds: float) -> float:
    """Return the texts a second with enough clients to keep every replica busy."""
    done = 0
    until = time.monotonic() + seconds

    async def client(number: int) -> None:
        nonlocal done
        async with await Connection.to(port) as connection:
            for turn in itertools.count():
                sent = request("/encode", body(TEXT), {"x-request-id": f"r{number}-{turn}"})
                right = outcome(TEXT, await connection.ask(sent)) == "right"
                if time.monotonic() > until:
                    return
                done += right

    await asyncio.gather(*(client(number) for number in range(CLIENTS_A_REPLICA * replicas)))
    return done / seconds


async def refusing(port: int) -> list[Gate]:
    """Send 64 requests at once where 4 texts may wait; all refusals must be the service's own."""

    async def ask(number: int) -> tuple[int, bool]:
        async with await Connection.to(port) as connection:
            sent = request("/encode", body(TEXT), {"x-request-id": f"q{number}"})
            reply = await connection.ask(sent)
            ours = reply.header("content-type") == "application/problem+json"
            return reply.status, ours and int(reply.header("retry-after") or 0) >= 1

    replies = await asyncio.gather(*(ask(number) for number in range(64)))
    refused = [own for status, own in replies if status != 200]
    return [
        exactly("too many at once: statuses", {200, 429}, {status for status, _ in replies}),
        at_least("… refused", 1, len(refused)),
        exactly("… with the service's own problem and Retry-After", len(refused), sum(refused)),
    ]


def run(scale: Scale) -> list[Gate]:
    """Run all parts in one cluster."""
    seconds = scale.of(20, 2)
    with (
        tempfile.TemporaryDirectory() as folder,
        ray.cluster(cpus=5),
        ray.proxy() as port,
    ):
        journal = Path(folder)
        ray.run_stub(ENGINE, journal, ONE_A_BATCH, num_replicas=2)
        gates = asyncio.run(killed(port, scale, journal))
        two = asyncio.run(rate(port, 2, seconds))
        gates += asyncio.run(stopped(port, ENGINE, journal))
        one = asyncio.run(rate(port, 1, seconds))
        gates.append(
            at_least("throughput of two replicas, times one", 1.9 / scale.slack, two / one)
        )
        ray.run_stub(ENGINE, journal, {"max_batch_tokens": 1, "max_queue_texts": 4})
        gates += asyncio.run(refusing(port))
        gates += ray_configured.run(port, scale)
    return gates
