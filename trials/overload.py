"""More requests than an engine can compute: goodput, refusals and latencies.

The stub computes 4 texts of 16 tokens in 80 ms, one batch at a time: C = 50 requests a second. The
capacity of the real engine is the rate of sixteen connections in closed loop. Requests are due at
fixed times, whatever the service does, and latency counts from the due time.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from testing.client import Reply, ask
from testing.load import Result
from trials import oracle
from trials.gates import Gate, Scale, at_least, at_most, exactly
from trials.servers import PROBE_SECONDS, SEED, Probes, Service, load, p99, probing, serve, stub

TOKENS, TEXTS, BATCH_SECONDS, QUEUE_SECONDS = 16, 4, 0.08, 0.5
RECOVERY_SECONDS = 5
GOODPUT = {1.5: 0.9, 3.0: 0.9, 10.0: 0.8}
"""Minimum goodput as a share of C, by load as a multiple of C."""
SOON = {"x_request_timeout_ms": "1000"}


class Known:
    """Service with a known capacity, and texts whose replies are known."""

    def __init__(self, service: Service, capacity: float, texts: int) -> None:
        self.service = service
        self.capacity = capacity
        """Requests a second, C."""
        generator = random.Random(SEED)
        inputs = {oracle.words(generator, TOKENS - 2) for _ in range(texts)}
        self.bodies: list[dict[str, object]] = [
            {"inputs": text, "outputs": ["pooled"], "dimensions": 4, "normalize": False}
            for text in sorted(inputs)
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
        requests: list[tuple[str, object]] = [("/encode", body) for body in self.bodies]
        rate = times * self.capacity
        count = round(rate * seconds)
        return await load(self.service, requests, replies=self.replies, rate=rate, count=count)


def judged(
    name: str, result: Result, slack: float, capacity: float, least: float, accepted_ms: float
) -> list[Gate]:
    """Return the gates of goodput and of accepted requests under a load above the capacity."""
    goodput = result.outcomes.count("right") / result.seconds / capacity
    accepted = p99(result.latencies("right"))
    return [
        at_least(f"{name}: goodput / C", least / slack, goodput),
        at_most(f"{name}: p99 of accepted", accepted_ms * slack, accepted, " ms"),
    ]


def others(result: Result) -> int:
    """Return the number of requests that were neither answered right nor refused."""
    return sum(outcome not in ("right", "shed") for outcome in result.outcomes)


def refused(name: str, result: Result, slack: float) -> list[Gate]:
    """Return the gates of the refusals by the stub."""
    retries = zip(result.retries_after, result.outcomes, strict=True)
    whole = [_whole(retry) for retry, outcome in retries if outcome == "shed"]
    shed, right = result.latencies("shed"), result.latencies("right")
    ratio = float(np.median(shed) / np.median(right)) if shed and right else math.nan
    return [
        at_most(f"{name}: p99 of shed", 50 * slack, p99(shed), " ms"),
        at_most(f"{name}: median of shed, in those of accepted", 1, ratio),
        exactly(f"{name}: neither right nor 429", 0, others(result)),
        exactly(f"{name}: bytes beyond one reply each", 0, result.surplus_bytes),
        exactly(f"{name}: 429 without a whole Retry-After ≥ 1", 0, whole.count(False)),
        Gate(
            f"{name}: the client's own processor time",
            "< 80 % of a core",
            f"{100 * result.cpu_seconds / result.seconds:.0f} %",
            result.cpu_seconds < 0.8 * result.seconds or slack > 1,
        ),
    ]


def _whole(retry_after: str | None) -> bool:
    return retry_after is not None and retry_after.isdigit() and int(retry_after) >= 1


def recovered_after(baseline: Result, after: Result) -> float:
    """Return the seconds until the p99 of all later requests is within 1.2 times the baseline's."""
    bound = 1.2 * p99(baseline.latencies("right"))
    quarters = [n / 4 for n in range(4 * RECOVERY_SECONDS + 1)]
    recovered = (since for since in quarters if p99(after.latencies("right", since)) <= bound)
    return next(recovered, math.inf)


def right(result: Result) -> float:
    """Return the share of requests that were answered right."""
    return result.outcomes.count("right") / len(result.outcomes)


def _settings(queue_timeout_seconds: float = QUEUE_SECONDS) -> dict[str, Any]:
    return {
        "max_batch_tokens": TEXTS * TOKENS,
        "queue_timeout_seconds": queue_timeout_seconds,
        "max_client_batch_size": 4096,
    }


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


async def burst_after_idling(scale: Scale) -> Gate:
    """Send single short texts, then a burst that takes a half or a third of the queue timeout."""
    burst = round(TEXTS / BATCH_SECONDS) * scale.of(4, 2)
    body = {"outputs": ["pooled"], "dimensions": 1}
    texts = ["the water of the " + "word " * (TOKENS - 6)] * TEXTS
    # predicted from single texts, the burst would take four times as long; a busy machine is slower
    settings = _settings(scale.of(2, 3) * burst * BATCH_SECONDS / TEXTS)
    async with stub({"batch_seconds": BATCH_SECONDS}, **settings) as service:
        for _ in range(10):
            await ask(service.port, "/encode", body | {"inputs": "a"})
        asking = (
            ask(service.port, "/encode", body | {"inputs": texts}) for _ in range(burst // TEXTS)
        )
        statuses = [reply.status for reply in await asyncio.gather(*asking)]
    return exactly("refused of a burst after single texts", 0, len(statuses) - statuses.count(200))


async def highest_rate(known: Known) -> Gate:
    """Return the gate of the highest rate at which 99.9 % of requests are answered."""
    for share in (1.0, 0.98, 0.95, 0.9, 0.8, 0.0):
        if share and right(await known.at(share, 20)) >= 0.999:
            break
    return at_least("highest rate with ≥ 99.9 % answered / C", 0.8, share)


async def overload(scale: Scale) -> list[Gate]:
    """Run every load on the stub in turn, then half the capacity again."""
    capacity, accepted_ms = TEXTS / BATCH_SECONDS, 1000 * (QUEUE_SECONDS + 2 * BATCH_SECONDS)
    gates, probes = [], Probes()
    async with stub({"batch_seconds": BATCH_SECONDS}, **_settings()) as service:
        known = Known(service, capacity, scale.of(200, 25))
        await known.learn()
        if scale is Scale.FULL:
            gates.append(await highest_rate(known))
        baseline = await known.at(0.5, scale.of(20, 1))
        async with probing(service, probes):
            for times in GOODPUT if scale is Scale.FULL else (3.0,):
                result, name = await known.at(times, scale.of(20, 2)), f"{times:g}×C"
                gates += judged(name, result, scale.slack, capacity, GOODPUT[times], accepted_ms)
                gates += refused(name, result, scale.slack)
        after = await known.at(0.5, scale.of(20, 1))
    gates += [
        exactly("liveness probes that failed", 0, probes.failed),
        at_most("p99 of liveness", 250 * scale.slack, p99(probes.latencies_ms), " ms"),
    ]
    if scale is Scale.FULL:
        seconds = recovered_after(baseline, after)
        gates.append(at_most("recovery at 0.5×C", RECOVERY_SECONDS, seconds, " s"))
    else:
        gates += [
            exactly("neither right nor shed at 0.5×C", 0, others(after)),
            at_least("share of right at 0.5×C, and at 3×C", right(result), right(after)),
        ]
    return [*gates, await retry_after_grows(scale), await burst_after_idling(scale)]


MOST_WORDS, CONNECTIONS = 240, 16
WORDS = ("the", "water", "of", "a", "river", "runs", "down", "from", "hills", "into", "one", "sea")


def mixed_requests() -> list[tuple[str, object]]:
    """Return requests of one text each, of evenly spread lengths."""
    generator = random.Random(SEED)
    lengths = [1 + n % MOST_WORDS for n in range(400)]
    generator.shuffle(lengths)
    texts = [" ".join(generator.choices(WORDS, k=length)) for length in lengths]
    return [
        ("/encode", {"inputs": text, "outputs": ["pooled"], "truncate": True}) for text in texts
    ]


async def saturation(scale: Scale) -> list[Gate]:
    """Measure the capacity of the real engine in texts of 1 to 240 words, then send multiples."""
    gates: list[Gate] = []
    async with serve() as service:
        seconds = {"seconds": float(scale.of(15, 1)), "warm_up_seconds": float(scale.of(1, 0))}
        closed = await load(service, mixed_requests(), connections=CONNECTIONS, **seconds)
        capacity = closed.outcomes.count("right") / closed.seconds
        for times in (3.0, 6.0)[: scale.of(2, 1)]:
            probes, name, rate = Probes(), f"{times:g}×C", times * capacity
            async with probing(service, probes):
                count = round(rate * scale.of(40, 1))
                asking = asyncio.create_task(
                    load(service, mixed_requests(), rate=rate, count=count)
                )
                await asyncio.sleep(10 * PROBE_SECONDS)
                began = time.perf_counter()
                await service.metric("headscope_queue_tokens")
                silence = 1000 * (time.perf_counter() - began)
                result = await asking
            admitted = len(result.outcomes) - result.outcomes.count("shed")
            share, shed = others(result) / admitted, result.latencies("shed")
            gates += judged(name, result, scale.slack, capacity, 0.9, 2000)
            gates.append(at_most(f"{name}: neither right nor 429, of the admitted", 0.01, share))
            # on a busy machine a second may have underestimated the capacity: nothing is shed
            if shed or scale is Scale.FULL:
                gates.append(at_most(f"{name}: p99 of shed", 100 * scale.slack, p99(shed), " ms"))
            live = p99(probes.latencies_ms)
            gates += [
                exactly(f"{name}: liveness probes that failed", 0, probes.failed),
                at_most(f"{name}: p99 of liveness", 50 * scale.slack, live, " ms"),
                at_most(f"{name}: /metrics answered after", 1000 * scale.slack, silence, " ms"),
            ]
    return gates


AT_ONCE, FLOOD = 8, 48
LEAST_SHARE = 0.5 / 1.3
"""Least share of an answer: half, by a forecast that is wrong by a factor of 1.3."""
REFUSED_SECONDS = 0.5


class Answer(NamedTuple):
    """Reply to one occlusion, and the seconds until it was complete."""

    reply: Reply
    seconds: float

    @property
    def share(self) -> float:
        """Computed part of the losses, 0 … 1."""
        (found,) = self.reply.json()["results"]
        return float(found["computed"]["occlusion"] / sum(map(len, found["occlusion"])))

    @property
    def retry_after(self) -> int:
        """Seconds after which the service has room."""
        return int(self.reply.header("retry-after") or 0)


async def occlusions(service: Service, requests: int, scale: Scale) -> list[Answer]:
    """Send occlusions of two texts of 242 tokens, or of 26, each on a connection of its own."""
    words = "the water runs down the hill and on to the green sea " * 20
    text = " ".join(words.split()[: scale.of(240, 24)])
    body = {"inputs": [[text, text.replace("water", "river")]], "include": ["occlusion"]}

    async def one() -> Answer:
        began = time.monotonic()
        reply = await ask(service.port, "/explain", body)
        return Answer(reply, time.monotonic() - began)

    return list(await asyncio.gather(*(one() for _ in range(requests))))


def gates_of(name: str, answers: Sequence[Answer], scale: Scale) -> list[Gate]:
    """Return the gates of occlusions that came together."""
    answered = [each for each in answers if each.reply.status == 200]
    refused = [each for each in answers if each.reply.status == 429]
    least = min((each.share for each in answered), default=0.0)
    gates = [
        exactly(f"{name}: other than 200 and 429", 0, len(answers) - len(answered) - len(refused)),
        at_least(f"{name}: answered", 1, len(answered)),
        at_least("… the least share of an answer", LEAST_SHARE / scale.slack, least),
    ]
    if refused:
        most, slowest = REFUSED_SECONDS * scale.slack, max(each.seconds for each in refused)
        gates += [
            at_most(f"… refused after, {len(refused)} refusals", most, slowest, " s"),
            at_least("… least retry-after", 1, min(each.retry_after for each in refused), " s"),
        ]
    return gates


async def explanations(scale: Scale) -> list[Gate]:
    """Send eight to a fresh service, one alone, eight again, and a flood with one beside it."""
    async with serve() as service:
        cold = await occlusions(service, AT_ONCE, scale)
        alone = await occlusions(service, 1, scale)
        warm = await occlusions(service, AT_ONCE, scale)
        counts = [sum(each.reply.status == 200 for each in found) for found in (cold, warm)]
        gates = [
            *gates_of(f"{AT_ONCE} of a fresh service", cold, scale),
            *gates_of("one alone", alone, scale),
            *gates_of(f"{AT_ONCE} of a warm one", warm, scale),
            at_most("answered cold and warm, difference", scale.slack, abs(counts[0] - counts[1])),
        ]
        flood = asyncio.create_task(occlusions(service, FLOOD, scale))
        await asyncio.sleep(1)
        (refused,) = await occlusions(service, 1, scale)
        if refused.reply.status == 429:
            await asyncio.sleep(refused.retry_after)
            (again,) = await occlusions(service, 1, scale)
            name = f"status after the retry-after of {refused.retry_after} s"
            gates.append(exactly(name, 200, again.reply.status))
        gates += gates_of(f"a flood of {FLOOD}", await flood, scale)
    return gates
