"""Engines that fail: which requests may fail with them, and which must not."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from testing.client import Connection, Reply, ask, request
from trials import oracle
from trials.engines import Fault
from trials.gates import Gate, Scale, at_least, at_most, exactly, main
from trials.servers import PATIENT, Service, stub

CLIENTS, MOST_TEXTS = 32, 4
SMALL_BATCHES = {"max_batch_tokens": 4 * MOST_TEXTS, **PATIENT}
GOOD = ["the water", "people find work", "a long day", "her first house", "time may come"] * 6
TRIGGERS: dict[Fault, str] = {
    "raise": "poison",
    "count": "wolf",
    "shape": "shape",
    "nan": "number",
    "infinity": "star",
    "hang": "hang",
}
"""Word that triggers each fault when a text contains it."""
HANG_MS, PROBES, PROBE_SECONDS = 1000, 2, 5


def body(texts: Sequence[str]) -> dict[str, object]:
    """Return the body of a request for these texts' vectors."""
    return {"inputs": list(texts), "outputs": ["pooled"], "dimensions": 4, "normalize": False}


def outcome(texts: Sequence[str], reply: Reply) -> str:
    """Return `right`, `wrong`, or the status of an error."""
    if reply.status != 200:
        return str(reply.status)
    content: Any = reply.json()
    vectors = [np.float32(result["pooled"]).tolist() for result in content["results"]]
    return "right" if vectors == [expected(text) for text in texts] else "wrong"


def expected(text: str) -> list[float]:
    """Return the expected vector of a text."""
    return oracle.pooled(text, 6, "mean", 4, normalize=False).tolist()


def faults() -> dict[int, Fault]:
    """Return the fault of each trigger's token id."""
    return {oracle.token_id(word): fault for fault, word in TRIGGERS.items()}


async def flaky(scale: Scale) -> list[Gate]:
    """Let one batch in 50 raise, a thousand times, while 32 clients request 10 texts each."""
    errors, outcomes, raised = scale.of(1_000, 8), Counter[str](), 0
    async with stub({"raise_every": 50}, **SMALL_BATCHES) as service:

        async def client(number: int) -> None:
            nonlocal raised
            connection = await Connection.to(service.port)
            while raised < errors:
                number += 1
                texts = [GOOD[(number + i) % len(GOOD)] for i in range(10)]
                reply = await connection.ask(request("/encode", body(texts)))
                outcomes[outcome(texts, reply)] += 1
                if number % 20 == 0:
                    raised = (await service.counts())["raised"]
            connection.close()

        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(client(number))
        after = [outcome(GOOD, await ask(service.port, "/encode", body(GOOD))) for _ in range(20)]
        raised = (await service.counts())["raised"]
    return [
        at_least("one batch in 50 raises: errors injected", errors, raised),
        Gate(
            "… requests that failed",
            "≤ the texts of those batches",
            f"{outcomes['500']} of {outcomes.total()}",
            outcomes["500"] <= MOST_TEXTS * raised,
        ),
        exactly("… outcomes but right and 500", set(), set(outcomes) - {"right", "500"}),
        at_least("… requests that failed, as faults were there", scale.of(1, 0), outcomes["500"]),
        Gate("… right", "the rest", str(outcomes["right"]), outcomes["right"] > raised),
        exactly("… right or a single error afterwards", 20, _fine(after)),
    ]


def _fine(outcomes: list[str]) -> int:
    return sum(found in ("right", "500") for found in outcomes)


async def triggered(scale: Scale) -> list[Gate]:
    """Trigger faults by single texts; the last fault ends the service."""
    async with stub({"batch_seconds": 0.01, "faults": faults()}) as service:
        parts = [await part(service, scale) for part in (poison, nonsense, hang)]
    return [gate for gates in parts for gate in gates]


async def poison(service: Service, scale: Scale) -> list[Gate]:
    """Send a text that breaks its batch among 31 good texts, by 32 clients at once."""
    rounds, failures, right = scale.of(100, 5), [], 0
    for number in range(rounds):
        texts = [*GOOD, "to the left"]
        texts.insert(number % 32, f"a {TRIGGERS['raise']}")
        blocker = asyncio.create_task(ask(service.port, "/encode", body(GOOD[:5])))
        outcomes = await asyncio.gather(*(_one(service, text) for text in texts))
        failures.append(sum(outcome != "right" for outcome in outcomes))
        right += outcomes.count("right")
        await blocker
    return [
        at_most("one poison text among 31: failures in any round", 1, max(failures)),
        exactly("… good texts that are right", 31 * rounds, right),
    ]


async def _one(service: Service, text: str) -> str:
    return outcome([text], await ask(service.port, "/encode", body([text])))


async def nonsense(service: Service, scale: Scale) -> list[Gate]:
    """Let the engine return the wrong count or shape, NaN, or infinity."""
    gates = []
    for fault in ("count", "shape", "nan", "infinity"):
        bad, outcomes = f"the {TRIGGERS[fault]}", Counter[str]()
        for _ in range(scale.of(50, 3)):
            texts = [*GOOD[:8], bad]
            replies = await asyncio.gather(*(_one(service, text) for text in texts))
            outcomes.update(replies[:-1])
            outcomes[f"bad {replies[-1]}"] += 1
        gates.append(exactly(f"{fault}: outcomes", {"right", "bad 500"}, set(outcomes)))
    return gates


async def out_of_memory(_: Scale) -> list[Gate]:
    """Limit memory to 8 texts: 16 are computed in halves, and the halves of 32 are too large."""
    async with stub({"most_texts": 8}) as service:
        outcomes = []
        for count in (8, 16, 32):
            texts, before = [GOOD[0]] * count, await service.counts()
            reply = await ask(service.port, "/encode", body(texts))
            after = await service.counts()
            outcomes.append((outcome(texts, reply), after["batches"] - before["batches"]))
        retry_after = reply.header("retry-after") or ""
    return [
        exactly("memory for 8 texts: 8, in one batch", ("right", 1), outcomes[0]),
        exactly("… 16, in three", ("right", 3), outcomes[1]),
        exactly("… 32", "503", outcomes[2][0]),
        at_most("… 32: batches that were tried", 3, outcomes[2][1]),
        at_least("… Retry-After", 1, int(retry_after or 0), " s"),
    ]


@dataclass
class Probed:
    """Statuses of readiness and liveness, in the order of the probes."""

    ready: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)


async def hang(service: Service, scale: Scale) -> list[Gate]:
    """Let a batch hang, and probe every five seconds, or more often at short scale."""
    probed, probes = Probed(), scale.of(PROBES, 50 * PROBES)
    started = time.perf_counter()
    text = f"a {TRIGGERS['hang']}"
    hung = await ask(service.port, "/encode", body([text]), x_request_timeout_ms=str(HANG_MS))
    took_ms = 1000 * (time.perf_counter() - started)
    queued = await ask(service.port, "/encode", body(GOOD), x_request_timeout_ms=str(HANG_MS))
    for _ in range(probes):
        probed.live.append((await ask(service.port, "/health/live")).status)
        probed.ready.append((await ask(service.port, "/health/ready")).status)
        if probed.ready[-1] != 200:
            break
        await asyncio.sleep(PROBES * PROBE_SECONDS / probes)
    return [
        exactly("the engine hangs: status at the deadline", 504, hung.status),
        at_most("… answered after", HANG_MS + 250 * scale.slack, took_ms, " ms"),
        exactly("… who waits behind it", 429, queued.status),
        exactly("… liveness", {200}, set(probed.live)),
        Gate("… readiness", f"503 within {probes} probes", str(probed.ready), 503 in probed.ready),
    ]


async def trial(scale: Scale) -> list[Gate]:
    """Run every fault in turn."""
    parts = [await part(scale) for part in (flaky, out_of_memory, triggered)]
    return [gate for gates in parts for gate in gates]


def run(scale: Scale) -> list[Gate]:
    """Return the gates of RELIABILITY's second table that are about the engine."""
    return asyncio.run(trial(scale))


if __name__ == "__main__":
    main(__doc__, faults=run)
