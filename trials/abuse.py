"""Everything that one client may do to the others, at random for half an hour, on the real engine.

Two neighbours at a time, bodies of every shape, and single texts that come at fixed times all the
while: nothing may be lost, nothing may fail, and memory stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter

from testing.blocking import ask as ask_blocking
from testing.generators import generate
from testing.load import Job
from trials.bodies import ALLOWED, MOST_BYTES, SHAPES, bodies
from trials.gates import Gate, Scale, at_least, at_most, exactly, main
from trials.neighbours import MEMORY_SECONDS, NEIGHBOURS, RATE, SINGLE, bytes_at_work
from trials.overload import SEED, Probes, p99, probing
from trials.servers import Service, serve

ROUND_SECONDS = 15


async def send_bodies(service: Service, until: float, seed: int) -> Counter[int]:
    """Bodies of any shape, one after another."""
    statuses: Counter[int] = Counter()
    found = bodies(2000)
    random.Random(seed).shuffle(found)
    while time.monotonic() < until:
        name, size = found.pop()
        content = SHAPES[name](min(size, MOST_BYTES - 100))
        asking = asyncio.to_thread(ask_blocking, service.port, "/encode", content, seconds=120.0)
        statuses[(await asking).status] += 1
    return statuses


async def trial(scale: Scale) -> list[Gate]:
    """Run all rounds, one after another."""
    generator = random.Random(SEED)
    outcomes: Counter[str] = Counter()
    statuses: Counter[int] = Counter()
    latencies: list[float] = []
    probes = Probes()
    async with serve() as service:
        job = Job(service.port, list(SINGLE), rate=RATE, count=round(RATE * ROUND_SECONDS))
        before = await bytes_at_work(service, scale)
        await asyncio.to_thread(generate, job)
        async with probing(service, probes):
            for number in range(scale.of(30 * 60 // ROUND_SECONDS, 1)):
                async with contextlib.AsyncExitStack() as stack:
                    for neighbour in generator.sample(NEIGHBOURS, 2):
                        await stack.enter_async_context(neighbour.beside(service))
                    until = time.monotonic() + ROUND_SECONDS
                    sending = asyncio.create_task(send_bodies(service, until, number))
                    result = await asyncio.to_thread(generate, job)
                    statuses += await sending
                outcomes += Counter(result.outcomes)
                latencies += result.latencies_ms
        await asyncio.sleep(scale.of(MEMORY_SECONDS, 0))
        growth = service.resident_bytes() / before
    return [
        at_least("single texts that were answered", 1, outcomes["right"]),
        exactly("… otherwise", set(), set(outcomes) - {"right"}),
        at_most("… p99 of their latency", 1000 * scale.slack, p99(latencies), " ms"),
        exactly("statuses that no body may have", set(), set(statuses) - ALLOWED - {504}),
        at_most("bodies that met their deadline first", 0.01, statuses[504] / statuses.total()),
        exactly("liveness probes that failed", 0, probes.failed),
        at_most("memory a minute later, times that before", 1.2 * scale.slack, growth),
    ]


def run(scale: Scale) -> list[Gate]:
    """The gate of mixed abuse."""
    return asyncio.run(trial(scale))


if __name__ == "__main__":
    main(__doc__, abuse=run)
