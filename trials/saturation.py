"""Several times the capacity of the real engine, in texts of 1 to 240 words, at the defaults.

The capacity is the rate of sixteen connections in closed loop. Then requests are due at fixed
times, whatever the service does, and latency counts from the due time.
"""

from __future__ import annotations

import asyncio
import random
import time

from testing.generators import generate
from testing.load import Job, Result
from trials.gates import Gate, Scale, at_least, at_most, exactly, main
from trials.overload import PROBE_SECONDS, SEED, Probes, p99, probing
from trials.servers import Service, serve

TIMES = (3.0, 6.0)
TEXTS, MOST_WORDS = 400, 240
CONNECTIONS = 16
WORDS = ("the", "water", "of", "a", "river", "runs", "down", "from", "hills", "into", "one", "sea")


def requests() -> list[tuple[str, object]]:
    """Return requests of one text each, of evenly spread lengths."""
    generator = random.Random(SEED)
    lengths = [1 + n % MOST_WORDS for n in range(TEXTS)]
    generator.shuffle(lengths)
    return [
        (
            "/encode",
            {
                "inputs": " ".join(generator.choices(WORDS, k=length)),
                "outputs": ["pooled"],
                "truncate": True,
            },
        )
        for length in lengths
    ]


async def found_capacity(service: Service, scale: Scale) -> float:
    """Return the requests a second in closed loop."""
    job = Job(
        service.port,
        requests(),
        connections=CONNECTIONS,
        seconds=float(scale.of(15, 1)),
        warm_up_seconds=float(scale.of(1, 0)),
    )
    result = await asyncio.to_thread(generate, job)
    return result.outcomes.count("right") / result.seconds


async def at(service: Service, rate: float, seconds: int) -> Result:
    """Send `rate` requests a second in open loop."""
    job = Job(service.port, requests(), rate=rate, count=round(rate * seconds))
    return await asyncio.to_thread(generate, job)


async def metrics_silence(service: Service) -> float:
    """Return the milliseconds until /metrics is answered."""
    began = time.perf_counter()
    await service.metric("headscope_queue_tokens")
    return 1000 * (time.perf_counter() - began)


def judge(times: float, capacity: float, result: Result, slack: float) -> list[Gate]:
    """Return the gates of a load above the capacity."""
    name = f"{times:g}×C"
    right, shed = result.outcomes.count("right"), result.outcomes.count("shed")
    others = len(result.outcomes) - right - shed
    gates = [
        at_least(f"{name}: goodput / C", 0.9 / slack, right / result.seconds / capacity),
        at_most(f"{name}: p99 of accepted", 2000 * slack, p99(result.latencies("right")), " ms"),
        at_most(
            f"{name}: neither right nor 429, share of the admitted", 0.01, others / (right + others)
        ),
    ]
    if (
        shed or slack == 1
    ):  # on a busy machine a second may have underestimated the capacity, so that nothing is shed
        shed_ms = p99(result.latencies("shed"))
        gates.append(at_most(f"{name}: p99 of shed", 100 * slack, shed_ms, " ms"))
    return gates


async def trial(scale: Scale) -> list[Gate]:
    """Measure the capacity, then send multiples of it."""
    gates: list[Gate] = []
    async with serve() as service:
        capacity = await found_capacity(service, scale)
        for times in TIMES[: scale.of(2, 1)]:
            probes = Probes()
            async with probing(service, probes):
                asking = asyncio.create_task(at(service, times * capacity, scale.of(40, 1)))
                await asyncio.sleep(10 * PROBE_SECONDS)
                silence = await metrics_silence(service)
                gates += judge(times, capacity, await asking, scale.slack)
            gates += [
                exactly(f"{times:g}×C: liveness probes that failed", 0, probes.failed),
                at_most(
                    f"{times:g}×C: p99 of liveness",
                    50 * scale.slack,
                    p99(probes.latencies_ms),
                    " ms",
                ),
                at_most(
                    f"{times:g}×C: /metrics answered after", 1000 * scale.slack, silence, " ms"
                ),
            ]
    return gates


def run(scale: Scale) -> list[Gate]:
    """Return the gates of overload on the real engine."""
    return asyncio.run(trial(scale))


if __name__ == "__main__":
    main(__doc__, saturation=run)
