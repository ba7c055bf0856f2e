"""Overload: goodput, shed requests and latencies under more requests than the engine can compute.

The stub computes 4 texts of 16 tokens in 80 ms, one batch at a time: C = 50 requests a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from testing.client import Lost, ask
from testing.generators import generate
from testing.load import Job, Result
from trials import oracle
from trials.gates import Gate, Scale, at_least, at_most, exactly, main
from trials.servers import Service, stub

TOKENS, TEXTS, BATCH_SECONDS, QUEUE_SECONDS = 16, 4, 0.08, 0.5
PROBE_SECONDS = 0.1
RECOVERY_SECONDS = 5
SEED = 1
GOODPUT = {1.5: 0.9, 3.0: 0.9, 10.0: 0.8}
"""Minimum goodput as a share of C, by load as a multiple of C."""


@dataclass
class Probes:
    """Results of the liveness probes during a load."""

    failed: int = 0
    latencies_ms: list[float] = field(default_factory=list)


@contextlib.asynccontextmanager
async def probing(service: Service, probes: Probes) -> AsyncIterator[None]:
    """Probe liveness during the block, each time over a new connection."""

    async def probe() -> None:
        while True:
            started = time.perf_counter()
            try:
                reply = await ask(service.port, "/health/live")
                probes.failed += reply.status != 200
            except (Lost, OSError):
                probes.failed += 1
            probes.latencies_ms.append(1000 * (time.perf_counter() - started))
            await asyncio.sleep(PROBE_SECONDS)

    task = asyncio.create_task(probe())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def median(latencies_ms: Sequence[float]) -> float:
    """Return the median in ms; NaN without values."""
    return float(np.median(latencies_ms)) if latencies_ms else math.nan


def p99(latencies_ms: Sequence[float]) -> float:
    """Return the 99th percentile in ms; infinite without values."""
    return float(np.percentile(latencies_ms, 99)) if latencies_ms else float("inf")


class Overload:
    """Service under different loads."""

    def __init__(self, service: Service, capacity: float, texts: int) -> None:
        self.service = service
        self.capacity = capacity
        """Requests a second, C."""
        generator = random.Random(SEED)
        texts = {oracle.words(generator, TOKENS - 2) for _ in range(texts)}
        self.bodies: list[dict[str, object]] = [
            {"inputs": text, "outputs": ["pooled"], "dimensions": 4, "normalize": False}
            for text in sorted(texts)
        ]
        self.replies: list[str] = []

    async def learn(self) -> None:
        """Request each text alone, and compare the reply with the oracle's.

        Raises:
            AssertionError: a reply differs.

        """
        for body in self.bodies:
            reply = await ask(self.service.port, "/encode", body)
            content: Any = reply.json()
            expected = oracle.pooled(str(body["inputs"]), 6, "mean", 4, normalize=False)
            assert np.float32(content["results"][0]["pooled"]).tolist() == expected.tolist()
            self.replies.append(reply.body.decode())

    async def at(self, times: float, seconds: float) -> Result:
        """Load the service with `times` its capacity for some seconds."""
        rate = times * self.capacity
        count = round(rate * seconds)
        job = Job(
            self.service.port,
            [("/encode", body) for body in self.bodies],
            replies=self.replies,
            rate=rate,
            count=count,
        )
        return await asyncio.to_thread(generate, job)


def judge(times: float, capacity: float, result: Result, slack: float) -> list[Gate]:
    """Return the gates of a load above the capacity."""
    goodput = result.outcomes.count("right") / result.seconds / capacity
    accepted = 1000 * (QUEUE_SECONDS + 2 * BATCH_SECONDS) * slack
    others = len(result.outcomes) - result.outcomes.count("right") - result.outcomes.count("shed")
    shed = [o == "shed" for o in result.outcomes]
    computed = [_whole(r) for r, s in zip(result.retries_after, shed, strict=True) if s]
    name = f"{times:g}×C"
    return [
        at_least(f"{name}: goodput / C", GOODPUT[times] / slack, goodput),
        at_most(f"{name}: p99 of accepted", accepted, p99(result.latencies("right")), " ms"),
        at_most(f"{name}: p99 of shed", 50 * slack, p99(result.latencies("shed")), " ms"),
        at_most(
            f"{name}: median of shed, in those of accepted",
            1,
            median(result.latencies("shed")) / median(result.latencies("right")),
        ),
        exactly(f"{name}: neither right nor 429", 0, others),
        exactly(f"{name}: bytes beyond one reply each", 0, result.surplus_bytes),
        exactly(f"{name}: 429 without a whole Retry-After ≥ 1", 0, computed.count(False)),
        Gate(
            f"{name}: the client's own processor time",
            "< 80 % of a core",
            f"{100 * result.cpu_seconds / result.seconds:.0f} %",
            result.cpu_seconds < 0.8 * result.seconds or slack > 1,
        ),
    ]


def right(result: Result) -> float:
    """Return the share of requests that were answered right."""
    return result.outcomes.count("right") / len(result.outcomes)


def _whole(retry_after: str | None) -> bool:
    return retry_after is not None and retry_after.isdigit() and int(retry_after) >= 1


def recovered_after(baseline: Result, after: Result) -> float:
    """Return the seconds until the p99 of all later requests is within 1.2 times the baseline's."""
    bound = 1.2 * p99(baseline.latencies("right"))
    for quarter in range(4 * RECOVERY_SECONDS + 1):
        if p99(after.latencies("right", quarter / 4)) <= bound:
            return quarter / 4
    return float("inf")


async def retry_after_grows(scale: Scale) -> Gate:
    """Check that Retry-After is once or twice the seconds of the work in the queue."""
    batch_seconds, work_seconds = 0.01, 2
    texts = ["the water of the " + "word " * (TOKENS - 6)] * round(
        work_seconds * TEXTS / batch_seconds
    )
    body = {"outputs": ["pooled"], "dimensions": 1, "inputs": texts}
    retries: list[list[int]] = []
    async with stub({"batch_seconds": batch_seconds}, **_settings()) as service:
        await ask(service.port, "/encode", body)
        waiting = []
        for _ in range(3):
            waiting.append(asyncio.create_task(ask(service.port, "/encode", body)))
            await asyncio.sleep(0.5)
            replies = [await ask(service.port, "/encode", body, **SOON) for _ in range(9)]
            retries.append([int(reply.header("retry-after") or 0) for reply in replies])
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    expected = [work_seconds * (count + 2) - 0.5 * (count + 1) - 1 for count in range(3)]
    within = [
        max((expected[n] - 1) / scale.slack, 1) <= min(seconds)
        and max(seconds) <= (2 * expected[n] + 2) * scale.slack
        for n, seconds in enumerate(retries)
    ]
    shown = ", ".join(f"{min(seconds)} … {max(seconds)}" for seconds in retries)
    must = ", ".join(f"{seconds:g} … {2 * seconds:g}" for seconds in expected)
    return Gate("Retry-After behind 2, 4, 6 s of work", f"about {must}", shown, all(within))


SOON = {"x_request_timeout_ms": "1000"}


def _settings(**others: Any) -> dict[str, Any]:
    return {
        "max_batch_tokens": TEXTS * TOKENS,
        "queue_timeout_seconds": QUEUE_SECONDS,
        "max_client_batch_size": 4096,
        **others,
    }


async def burst_after_idling(scale: Scale) -> Gate:
    """Send single short texts, then a burst that takes a half or a third of the queue timeout."""
    burst = round(TEXTS / BATCH_SECONDS) * scale.of(4, 2)
    body = {"outputs": ["pooled"], "dimensions": 1}
    texts = ["the water of the " + "word " * (TOKENS - 6)] * TEXTS
    # predicted from single texts, the burst would take four times as long; a busy machine is slower
    seconds = scale.of(2, 3) * burst * BATCH_SECONDS / TEXTS
    settings = _settings(queue_timeout_seconds=seconds)
    async with stub({"batch_seconds": BATCH_SECONDS}, **settings) as service:
        for _ in range(10):
            await ask(service.port, "/encode", body | {"inputs": "a"})
        asking = (
            ask(service.port, "/encode", body | {"inputs": texts}) for _ in range(burst // TEXTS)
        )
        statuses = [reply.status for reply in await asyncio.gather(*asking)]
    return exactly("refused of a burst after single texts", 0, len(statuses) - statuses.count(200))


async def found_capacity(load: Overload) -> Gate:
    """Return the gate of the highest rate at which 99.9 % of requests are answered."""
    for share in (1.0, 0.98, 0.95, 0.9, 0.8):
        result = await load.at(share, 20)
        if result.outcomes.count("right") >= 0.999 * len(result.outcomes):
            break
    else:
        share = 0.0
    return at_least("highest rate with ≥ 99.9 % answered / C", 0.8, share)


async def trial(scale: Scale) -> list[Gate]:
    """Run every load in turn, then half the capacity again."""
    capacity = TEXTS / BATCH_SECONDS
    gates, probes = [], Probes()
    async with stub({"batch_seconds": BATCH_SECONDS}, **_settings()) as service:
        load = Overload(service, capacity, scale.of(200, 25))
        await load.learn()
        if scale is Scale.FULL:
            gates.append(await found_capacity(load))
        baseline = await load.at(0.5, scale.of(20, 1))
        async with probing(service, probes):
            for times in GOODPUT if scale is Scale.FULL else (3.0,):
                result = await load.at(times, scale.of(20, 2))
                gates += judge(times, capacity, result, scale.slack)
        after = await load.at(0.5, scale.of(20, 1))
    gates += [
        exactly("liveness probes that failed", 0, probes.failed),
        at_most("p99 of liveness", 250 * scale.slack, p99(probes.latencies_ms), " ms"),
    ]
    if scale is Scale.FULL:
        seconds = recovered_after(baseline, after)
        gates.append(at_most("recovery at 0.5×C", RECOVERY_SECONDS, seconds, " s"))
    else:
        others = set(after.outcomes) - {"right", "shed"}
        gates += [
            exactly("neither right nor shed at 0.5×C", set(), others),
            at_least("share of right at 0.5×C, and at 3×C", right(result), right(after)),
        ]
    return [*gates, await retry_after_grows(scale), await burst_after_idling(scale)]


def run(scale: Scale) -> list[Gate]:
    """Return the gates of RELIABILITY's first table."""
    return asyncio.run(trial(scale))


if __name__ == "__main__":
    main(__doc__, overload=run)
