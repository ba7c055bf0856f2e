"""Clients that disconnect at random moments, and must leave no work and no memory behind."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any

from testing.client import Connection, ask, request
from trials import oracle
from trials.faults import GOOD, body, outcome
from trials.gates import Gate, Scale, at_least, at_most, exactly, main
from trials.servers import PATIENT, Service, stub

SEED, AT_ONCE = 4, 64
BATCH_SECONDS = 0.01
SETTLED_SECONDS = 5
BYTES_IN_FLIGHT = 17_000_000
"""Maximum bytes of all replies in flight: little more than the reply to `ALL_MAPS`."""
ALL_MAPS: dict[str, Any] = {"inputs": "the water " * 120}
LARGE = ALL_MAPS | {"layers": [0, 1]}
BINARY = {"accept": "application/vnd.safetensors"}


async def leave(service: Service, generator: random.Random) -> str:
    """Connect a client, disconnect it at a random moment, and return the moment's name."""
    connection = await Connection.to(service.port)
    texts = [oracle.words(generator, generator.randint(1, 40)) for _ in range(8)]
    when = generator.choice(("before its body's end", "queued or computing", "in its reply"))
    if when == "before its body's end":
        content = request("/encode", body(texts))
        connection.send(content[: generator.randrange(1, len(content))])
        await asyncio.sleep(generator.random() * 2 * BATCH_SECONDS)
    elif when == "queued or computing":
        connection.send(request("/encode", body(texts)))
        await asyncio.sleep(generator.random() * 20 * BATCH_SECONDS)
    else:
        connection.transport.pause_reading()
        connection.send(request("/attention", LARGE, BINARY))
        await asyncio.sleep(generator.random() * 40 * BATCH_SECONDS)
    if generator.random() < 0.5:
        connection.abort()
    else:
        connection.close()
    return when


async def everyone_leaves(service: Service, count: int) -> Counter[str]:
    """Run `count` clients that disconnect, `AT_ONCE` at a time."""
    generator, left = random.Random(SEED), Counter[str]()
    todo = iter(range(count))

    async def client() -> None:
        for _ in todo:
            left[await leave(service, generator)] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(client())
    return left


async def settled(service: Service) -> float:
    """Return the seconds until no token waits; infinite after four times `SETTLED_SECONDS`."""
    started = time.monotonic()
    while await service.metric("headscope_queue_tokens"):
        if time.monotonic() > started + 4 * SETTLED_SECONDS:
            return float("inf")
        await asyncio.sleep(0.02)
    return time.monotonic() - started


async def queued_work_is_dropped(clients: int) -> list[Gate]:
    """Check that no text is computed whose client leaves while another batch is computed."""
    async with stub({"batch_seconds": 1.0}, **PATIENT) as service:
        before = (await service.counts())["texts"]
        first = asyncio.create_task(ask(service.port, "/encode", body(GOOD[:1])))
        await asyncio.sleep(0.2)
        connections = [await Connection.to(service.port) for _ in range(clients)]
        for connection in connections:
            connection.send(request("/encode", body(GOOD[:4])))
        while await service.metric("headscope_queue_texts") < 4 * clients:
            await asyncio.sleep(0.01)
        for connection in connections:
            connection.abort()
        reply = await first
        await settled(service)
        computed = (await service.counts())["texts"] - before
        dropped = await service.metric("headscope_dropped_texts_total")
    return [
        exactly("of texts whose clients left while they waited: computed", 0, computed - 1),
        exactly("… dropped, and counted", 4 * clients, int(dropped)),
        exactly("… who did not leave", "right", outcome(GOOD[:1], reply)),
    ]


async def trial(scale: Scale) -> list[Gate]:
    """Let clients disconnect, then check that others are served."""
    count = scale.of(5_000, 200)
    bounds = {"max_bytes_in_flight": BYTES_IN_FLIGHT, "max_batch_tokens": 256}
    async with stub({"batch_seconds": BATCH_SECONDS}, **bounds, **PATIENT) as service:
        before = await asyncio.gather(*(_one(service) for _ in range(20)))
        resident = service.resident_bytes()
        left = await everyone_leaves(service, count)
        seconds = await settled(service)
        large = [
            (await ask(service.port, "/attention", ALL_MAPS, **BINARY)).status for _ in range(2)
        ]
        after = await asyncio.gather(*(_one(service) for _ in range(20)))
        counted = await service.metric("headscope_client_disconnects_total")
        growth = service.resident_bytes() / resident - 1
    return [
        exactly("clients that left", count, left.total()),
        at_least("… counted by the service", 1, int(counted)),
        at_most("… queue empty after", SETTLED_SECONDS * scale.slack, seconds, " s"),
        exactly("… a reply that needs all bytes in flight", [200] * 2, large),
        exactly("… everyone before and after", {"right"}, {*before, *after}),
        at_most("… memory more than before", 100, 100 * growth, " %"),
        *await queued_work_is_dropped(scale.of(100, 20)),
    ]


async def _one(service: Service) -> str:
    return outcome(GOOD, await ask(service.port, "/encode", body(GOOD)))


def run(scale: Scale) -> list[Gate]:
    """Return the gates of disconnects."""
    return asyncio.run(trial(scale))


if __name__ == "__main__":
    main(__doc__, disconnects=run)
