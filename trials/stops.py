"""Services that are stopped or killed while clients send requests without pause."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass

import psutil

from testing.client import HANG_SECONDS, Lost, ask, request
from testing.clients import Clients
from trials import oracle
from trials.faults import body, outcome
from trials.gates import Gate, Scale, at_least, at_most, exactly, main
from trials.servers import PATIENT, Service, serve, stub

CLIENTS, TEXTS = 16, ["the water", "people find work", "a long day", "her first house"]
READY_SECONDS = 0.9
BATCH_SECONDS, GRACE_SECONDS, ROUTING_SECONDS = 0.05, 30, 10
SETTINGS = {"max_batch_tokens": 64, "drain_seconds": 20, **PATIENT}
CLEAN = 50
"""Number of consecutive right replies, over new connections, after which routing is clean."""


def clients(port: int) -> Clients:
    """Return clients that request one text at a time and check the replies."""
    requests = [request("/encode", body([text])) for text in TEXTS]
    return Clients(port, requests, lambda number, reply: outcome([TEXTS[number]], reply))


@dataclass(frozen=True)
class Stop:
    """Result of one stop under load."""

    outcomes: Counter[str]
    slow: str
    """Outcome of a request that was being computed."""
    readiness: int
    """Status of /health/ready just after the signal."""
    exit_code: int
    seconds: float


async def stop_once(slack: float) -> Stop:
    """Send SIGTERM under the load of 16 clients, while a request of 40 batches is computed."""
    engine = {"batch_seconds": BATCH_SECONDS}
    async with stub(engine, **SETTINGS) as service:
        load, long = clients(service.port), [oracle.WORDS[i] + " " * i for i in range(64)] * 8
        async with load.running(CLIENTS):
            await load.until("right", 50)
            slow = asyncio.create_task(ask(service.port, "/encode", body(long)))
            await asyncio.sleep(4 * BATCH_SECONDS)
            signalled = time.monotonic()
            service.process.send_signal(signal.SIGTERM)
            readiness = await _readiness(service, signalled + READY_SECONDS * slack)
            await load.until("refused", CLIENTS)
        reply = await slow
        code = await service.end(GRACE_SECONDS)
        seconds = time.monotonic() - signalled
    return Stop(load.outcomes, outcome(long, reply), readiness, code, seconds)


async def _readiness(service: Service, until: float) -> int:
    """Return readiness's first status other than 200 before a time, else 200."""
    status = 200
    while status == 200 and time.monotonic() < until:
        status = (await ask(service.port, "/health/ready")).status
    return status


async def sigterm(scale: Scale) -> list[Gate]:
    """Stop services by SIGTERM several times."""
    count = scale.of(50, 1)
    stops: list[Stop] = []
    for _ in range(0, count, 3):
        stops += await asyncio.gather(
            *(stop_once(scale.slack) for _ in range(min(3, count - len(stops))))
        )
    outcomes = sum((stop.outcomes for stop in stops), Counter[str]())
    refused = outcomes.pop("refused")
    ended = {stop.exit_code for stop in stops}
    return [
        exactly(
            f"SIGTERM under load ×{count}: outcomes of what was sent", {"right"}, set(outcomes)
        ),
        at_least("… requests answered", 50 * count, outcomes["right"]),
        at_least("… and connections refused afterwards", CLIENTS * count, refused),
        exactly("… long requests that were being computed", {"right"}, {s.slow for s in stops}),
        exactly("… readiness at once", {503}, {stop.readiness for stop in stops}),
        Gate("… exit code", "0, or by that signal", str(ended), ended <= {0, -int(signal.SIGTERM)}),
        at_most("… longest time to the end", GRACE_SECONDS, max(s.seconds for s in stops), " s"),
    ]


async def killed_replica(scale: Scale) -> list[Gate]:
    """Kill one of two workers by SIGKILL."""
    async with serve("--engine", "fake", "--workers", "2") as service:
        load = clients(service.port)
        async with load.running(CLIENTS):
            await load.until("right", 200)
            victim = psutil.Process(service.process.pid).children()[0]
            on_it = sum(c.status == psutil.CONN_ESTABLISHED for c in victim.net_connections("tcp"))
            victim.kill()
            load.killed = time.monotonic()
            seconds = await _clean(service, victim)
            await load.until("right", load.outcomes["right"] + 200)
        replicas = len(psutil.Process(service.process.pid).children())
        os.kill(service.process.pid, signal.SIGTERM)
        code = await service.end()
    lost, late = load.outcomes["lost"], load.late
    others = set(load.outcomes) - {"right", "lost"}
    return [
        at_most("kill -9 of one of two replicas: lost in flight on it", on_it, lost - late),
        at_most("… lost by those who connected while it died", on_it, late),
        exactly("… neither right nor lost", set(), others),
        at_most("… routing clean after", ROUTING_SECONDS * scale.slack, seconds, " s"),
        exactly("… replicas afterwards", 2, replicas),
        exactly("… exit code of the service", 0, code),
    ]


async def _clean(service: Service, victim: psutil.Process) -> float:
    """Return the seconds until another worker runs and all later requests are answered."""
    killed, supervisor = time.monotonic(), psutil.Process(service.process.pid)
    async with asyncio.timeout(HANG_SECONDS):
        while len({*supervisor.children()} - {victim}) < 2:
            await asyncio.sleep(0.05)
        while not await asyncio.to_thread(service.ready):
            await asyncio.sleep(0.05)
    started, fine = time.monotonic(), 0
    while fine < CLEAN:
        try:
            right = outcome(TEXTS, await ask(service.port, "/encode", body(TEXTS))) == "right"
        except (Lost, OSError):
            right = False
        if not right:
            started, fine = time.monotonic(), -1
        fine += 1
    return started - killed


async def trial(scale: Scale) -> list[Gate]:
    """Run the stops, then a kill."""
    return [*await sigterm(scale), *await killed_replica(scale)]


def run(scale: Scale) -> list[Gate]:
    """Return the gates of RELIABILITY's second table that are about the process."""
    return asyncio.run(trial(scale))


if __name__ == "__main__":
    main(__doc__, stops=run)
