"""Engines that fail, clients that leave or stall, and processes that are stopped or killed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import psutil

from testing.client import HANG_SECONDS, Connection, Lost, Reply, ask, request
from testing.clients import Clients
from testing.load import Result
from trials import oracle
from trials.gates import Gate, Scale, at_least, at_most, exactly
from trials.overload import Known
from trials.servers import BINARY, PATIENT, Service, serve, stub
from trials.stub import Fault

CLIENTS, MOST_TEXTS = 32, 4
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
    expected = [oracle.pooled(text, 6, "mean", 4, normalize=False).tolist() for text in texts]
    return "right" if vectors == expected else "wrong"


async def encoded(service: Service, texts: Sequence[str]) -> str:
    """Return the outcome of a request."""
    return outcome(texts, await ask(service.port, "/encode", body(texts)))


def faults_of(words: Iterable[str]) -> dict[int, Fault]:
    """Return the fault that each trigger word causes, by its token id."""
    return {oracle.token_id(word): fault for fault, word in TRIGGERS.items() if word in words}


async def faults(scale: Scale) -> list[Gate]:
    """Run every fault of an engine in turn; the last one ends the service."""
    gates = [*await flaky(scale), *await out_of_memory()]
    engine = {"batch_seconds": 0.01, "faults": faults_of(TRIGGERS.values())}
    async with stub(engine) as service:
        for part in (poison, nonsense, hang):
            gates += await part(service, scale)
    return gates


async def flaky(scale: Scale) -> list[Gate]:
    """Let one batch in 50 raise, a thousand times, while 32 clients request 10 texts each."""
    errors = scale.of(1_000, 8)
    lists = ([GOOD[(number + i) % len(GOOD)] for i in range(10)] for number in itertools.count())
    requests = ((request("/encode", body(texts)), partial(outcome, texts)) for texts in lists)
    small_batches = {"max_batch_tokens": 4 * MOST_TEXTS, **PATIENT}
    async with stub({"raise_every": 50}, **small_batches) as service:
        load = Clients(service.port, requests)
        async with load.running(CLIENTS):
            while (await service.counts())["raised"] < errors:
                await asyncio.sleep(0.05)
        after = Counter([await encoded(service, GOOD) for _ in range(20)])
        raised, outcomes = (await service.counts())["raised"], load.outcomes
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
        exactly("… right or a single error afterwards", 20, after["right"] + after["500"]),
    ]


async def poison(service: Service, scale: Scale) -> list[Gate]:
    """Send a text that breaks its batch among 31 good texts, by 32 clients at once."""
    rounds, failures, right = scale.of(100, 5), [], 0
    for number in range(rounds):
        texts = [*GOOD, "to the left"]
        texts.insert(number % 32, f"a {TRIGGERS['raise']}")
        blocker = asyncio.create_task(encoded(service, GOOD[:5]))
        outcomes = await asyncio.gather(*(encoded(service, [text]) for text in texts))
        failures.append(sum(outcome != "right" for outcome in outcomes))
        right += outcomes.count("right")
        await blocker
    return [
        at_most("one poison text among 31: failures in any round", 1, max(failures)),
        exactly("… good texts that are right", 31 * rounds, right),
    ]


async def nonsense(service: Service, scale: Scale) -> list[Gate]:
    """Let the engine return the wrong count or shape, NaN, or infinity."""
    gates, kinds = [], ("count", "shape", "nan", "infinity")
    for fault, bad in (
        (fault, f"the {word}") for fault, word in TRIGGERS.items() if fault in kinds
    ):
        outcomes = Counter[str]()
        for _ in range(scale.of(50, 3)):
            *good, wrong = await asyncio.gather(
                *(encoded(service, [text]) for text in [*GOOD[:8], bad])
            )
            outcomes.update([*good, f"bad {wrong}"])
        gates.append(exactly(f"{fault}: outcomes", {"right", "bad 500"}, set(outcomes)))
    return gates


async def out_of_memory() -> list[Gate]:
    """Limit memory to 8 texts: 16 are computed in halves, and the halves of 32 are too large."""
    async with stub({"most_texts": 8}) as service:
        outcomes = []
        for count in (8, 16, 32):
            texts, before = [GOOD[0]] * count, await service.counts()
            reply = await ask(service.port, "/encode", body(texts))
            after = await service.counts()
            outcomes.append((outcome(texts, reply), after["batches"] - before["batches"]))
    return [
        exactly("memory for 8 texts: 8, in one batch", ("right", 1), outcomes[0]),
        exactly("… 16, in three", ("right", 3), outcomes[1]),
        exactly("… 32", "503", outcomes[2][0]),
        at_most("… 32: batches that were tried", 3, outcomes[2][1]),
        at_least("… Retry-After", 1, int(reply.header("retry-after") or 0), " s"),
    ]


async def hang(service: Service, scale: Scale) -> list[Gate]:
    """Let a batch hang, and probe every five seconds, or more often at short scale."""
    ready, live, probes = list[int](), set[int](), scale.of(PROBES, 50 * PROBES)
    started, soon = time.perf_counter(), {"x_request_timeout_ms": str(HANG_MS)}
    hung = await ask(service.port, "/encode", body([f"a {TRIGGERS['hang']}"]), **soon)
    took_ms = 1000 * (time.perf_counter() - started)
    queued = await ask(service.port, "/encode", body(GOOD), **soon)
    while len(ready) < probes and 503 not in ready:
        live.add((await ask(service.port, "/health/live")).status)
        ready.append((await ask(service.port, "/health/ready")).status)
        await asyncio.sleep(PROBES * PROBE_SECONDS / probes)
    return [
        exactly("the engine hangs: status at the deadline", 504, hung.status),
        at_most("… answered after", HANG_MS + 250 * scale.slack, took_ms, " ms"),
        exactly("… who waits behind it", 429, queued.status),
        exactly("… liveness", {200}, live),
        Gate("… readiness", f"503 within {probes} probes", str(ready), 503 in ready),
    ]


SEED, AT_ONCE = 4, 64
BATCH_SECONDS = 0.01
SETTLED_SECONDS = 5
BYTES_IN_FLIGHT = 17_000_000
"""Maximum bytes of all replies in flight: little more than the reply to `ALL_MAPS`."""
ALL_MAPS: dict[str, Any] = {"inputs": "the water " * 120}


async def leave(service: Service, generator: random.Random) -> None:
    """Connect a client, and disconnect it at a random moment."""
    connection = await Connection.to(service.port)
    texts = [oracle.words(generator, generator.randint(1, 40)) for _ in range(8)]
    content = request("/encode", body(texts))
    when = generator.choice(("before its body's end", "queued or computing", "in its reply"))
    if when == "before its body's end":
        content, batches = content[: generator.randrange(1, len(content))], 2
    elif when == "queued or computing":
        batches = 20
    else:
        connection.transport.pause_reading()
        content, batches = request("/attention", ALL_MAPS | {"layers": [0, 1]}, BINARY), 40
    connection.send(content)
    await asyncio.sleep(generator.random() * batches * BATCH_SECONDS)
    end = connection.abort if generator.random() < 0.5 else connection.close
    end()


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
        first = asyncio.create_task(encoded(service, GOOD[:1]))
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
        exactly("… who did not leave", "right", reply),
    ]


async def disconnects(scale: Scale) -> list[Gate]:
    """Let clients disconnect at random moments, then check that nothing stays held."""
    count, generator = scale.of(5_000, 200), random.Random(SEED)
    bounds = {"max_bytes_in_flight": BYTES_IN_FLIGHT, "max_batch_tokens": 256}
    async with stub({"batch_seconds": BATCH_SECONDS}, **bounds, **PATIENT) as service:
        others = {*await asyncio.gather(*(encoded(service, GOOD) for _ in range(20)))}
        resident, todo = service.resident_bytes(), iter(range(count))

        async def client() -> None:
            for _ in todo:
                await leave(service, generator)

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))
        seconds = await settled(service)
        large = [
            (await ask(service.port, "/attention", ALL_MAPS, **BINARY)).status for _ in range(2)
        ]
        others |= {*await asyncio.gather(*(encoded(service, GOOD) for _ in range(20)))}
        counted = await service.metric("headscope_client_disconnects_total")
        growth = service.resident_bytes() / resident - 1
    return [
        at_least(f"of {count} clients that left: counted by the service", 1, int(counted)),
        at_most("… queue empty after", SETTLED_SECONDS * scale.slack, seconds, " s"),
        exactly("… a reply that needs all bytes in flight", [200] * 2, large),
        exactly("… everyone before and after", {"right"}, others),
        at_most("… memory more than before", 100, 100 * growth, " %"),
        *await queued_work_is_dropped(scale.of(100, 20)),
    ]


CUT_SECONDS = 30
REPLY = {"inputs": "the water " * 160, "layers": [0, 1]}
"""Request for maps of 10 MB."""
REPLY_BYTES = 11_000_000
"""Bytes of the reply and of the hidden states from which it is computed."""
UNSENT = request("/encode", {"inputs": "the water " * 100})[:-900]
RECEIVE_BUFFER = 4096


def stall(port: int, content: bytes) -> socket.socket:
    """Open a connection that sends some bytes, and then neither sends nor reads."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    connection.connect(("127.0.0.1", port))
    connection.sendall(content)
    return connection


def served(service: Service, stallers: Sequence[socket.socket]) -> int:
    """Return the number of stalled clients to which the service still has a connection."""
    open_connections = psutil.Process(service.process.pid).net_connections("tcp")
    established = (c for c in open_connections if c.status == psutil.CONN_ESTABLISHED)
    ports = {c.raddr.port for c in established if c.raddr}
    return sum(staller.getsockname()[1] in ports for staller in stallers)


@dataclass
class Stalled:
    """Results of the stalled clients over all rounds."""

    begun: int = 0
    longest_seconds: float = 0.0
    left: int = 0
    """Number of clients still connected after `CUT_SECONDS`."""


@contextlib.asynccontextmanager
async def stalling(service: Service, count: int, stalled: Stalled) -> AsyncIterator[None]:
    """Stall `count` clients of each kind during the block, then wait until all are disconnected."""
    with contextlib.ExitStack() as stack:
        stallers = []
        for content in (request("/attention", REPLY, BINARY), UNSENT):
            stallers += [stack.enter_context(stall(service.port, content)) for _ in range(count)]
            while await service.metric("headscope_queue_tokens"):
                await asyncio.sleep(0.02)
        since = time.monotonic()
        while (begun := served(service, stallers)) < 2 * count and time.monotonic() < since + 1:
            await asyncio.sleep(0.02)  # until the last are accepted
        stalled.begun += begun
        yield
        while (waiting := served(service, stallers)) and time.monotonic() < since + CUT_SECONDS:
            await asyncio.sleep(0.1)
        stalled.longest_seconds = max(stalled.longest_seconds, time.monotonic() - since)
        stalled.left += waiting


async def stalls(scale: Scale) -> list[Gate]:
    """Load the service with and without clients that neither read nor send, in turn."""
    count, stalled = scale.of(100, 5), Stalled()
    quiet: list[Result] = []
    beside: list[Result] = []
    settings = {
        "max_batch_tokens": 64,
        "max_length": 512,
        "max_bytes_in_flight": 2 * count * REPLY_BYTES,
        "client_timeout_seconds": scale.of(20, 6),
        **PATIENT,
    }
    async with stub({"batch_seconds": BATCH_SECONDS}, **settings) as service:
        known = Known(service, 4 / BATCH_SECONDS, scale.of(200, 25))
        await known.learn()
        await known.at(0.5, scale.of(5, 1))
        for _ in range(scale.of(3, 1)):
            quiet.append(await known.at(0.5, scale.of(10, 2)))
            async with stalling(service, count, stalled):
                beside.append(await known.at(0.5, scale.of(10, 2)))
        large = (await ask(service.port, "/attention", REPLY, **BINARY)).status
    outcomes = {outcome for result in (*quiet, *beside) for outcome in result.outcomes}
    allowed, all_of_them = 1.2 * scale.slack, 2 * count * len(beside)
    return [
        at_least("clients that stalled at once", scale.of(all_of_them, 1), stalled.begun),
        exactly("… everyone else", {"right"}, outcomes),
        at_most("… their median latency, times that without", allowed, ratio(beside, quiet, 50)),
        at_most("… their p99, times that without", allowed, ratio(beside, quiet, 99)),
        exactly(f"… still served after {CUT_SECONDS} s", 0, stalled.left),
        at_most("… the last cut off after", CUT_SECONDS, stalled.longest_seconds, " s"),
        exactly("… who asks for as much afterwards", 200, large),
    ]


def ratio(beside: list[Result], quiet: list[Result], percentile: int) -> float:
    """Return the ratio of a latency percentile with stalled clients to without: of the medians."""
    with_them, without = (
        median(float(np.percentile(result.latencies("right"), percentile)) for result in results)
        for results in (beside, quiet)
    )
    return with_them / without


STOPPING_CLIENTS, TEXTS = 16, GOOD[:4]
READY_SECONDS, COMPUTING_SECONDS, GRACE_SECONDS, ROUTING_SECONDS = 0.9, 0.05, 30, 10
CLEAN = 50
"""Number of consecutive right replies, over new connections, after which routing is clean."""


def clients(port: int) -> Clients:
    """Return clients that request one text at a time and check the replies."""
    single = [(request("/encode", body([text])), partial(outcome, [text])) for text in TEXTS]
    return Clients(port, itertools.cycle(single))


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
    settings = {"max_batch_tokens": 64, "drain_seconds": 20, **PATIENT}
    async with stub({"batch_seconds": COMPUTING_SECONDS}, **settings) as service:
        load, long = clients(service.port), [oracle.WORDS[i] + " " * i for i in range(64)] * 8
        async with load.running(STOPPING_CLIENTS):
            await load.until("right", 50)
            slow = asyncio.create_task(encoded(service, long))
            await asyncio.sleep(4 * COMPUTING_SECONDS)
            signalled, readiness = time.monotonic(), 200
            service.process.send_signal(signal.SIGTERM)
            while readiness == 200 and time.monotonic() < signalled + READY_SECONDS * slack:
                readiness = (await ask(service.port, "/health/ready")).status
            await load.until("refused", STOPPING_CLIENTS)
        found = await slow
        code = await service.end(GRACE_SECONDS)
    return Stop(load.outcomes, found, readiness, code, time.monotonic() - signalled)


async def stops(scale: Scale) -> list[Gate]:
    """Stop services by SIGTERM several times, three at once; then kill a worker."""
    count = scale.of(50, 1)
    stopped: list[Stop] = []
    while len(stopped) < count:
        at_once = min(3, count - len(stopped))
        stopped += await asyncio.gather(*(stop_once(scale.slack) for _ in range(at_once)))
    outcomes = sum((stop.outcomes for stop in stopped), Counter[str]())
    refused, name = outcomes.pop("refused"), f"SIGTERM under load ×{count}"
    ended = {stop.exit_code for stop in stopped}
    seconds = max(stop.seconds for stop in stopped)
    return [
        exactly(f"{name}: outcomes of what was sent", {"right"}, set(outcomes)),
        at_least("… requests answered", 50 * count, outcomes["right"]),
        at_least("… and connections refused afterwards", STOPPING_CLIENTS * count, refused),
        exactly("… long requests that were being computed", {"right"}, {s.slow for s in stopped}),
        exactly("… readiness at once", {503}, {stop.readiness for stop in stopped}),
        Gate("… exit code", "0, or by that signal", str(ended), ended <= {0, -int(signal.SIGTERM)}),
        at_most("… longest time to the end", GRACE_SECONDS, seconds, " s"),
        *await killed_replica(scale),
    ]


async def killed_replica(scale: Scale) -> list[Gate]:
    """Kill one of two workers by SIGKILL."""
    async with serve("--engine", "fake", "--workers", "2") as service:
        load = clients(service.port)
        async with load.running(STOPPING_CLIENTS):
            await load.until("right", 200)
            victim = service.children[0]
            on_it = sum(c.status == psutil.CONN_ESTABLISHED for c in victim.net_connections("tcp"))
            victim.kill()
            load.killed = time.monotonic()
            seconds = await _clean(service, victim) - load.killed
            await load.until("right", load.outcomes["right"] + 200)
        replicas = len(service.children)
        os.kill(service.process.pid, signal.SIGTERM)
        code = await service.end()
    lost, late = load.outcomes["lost"], load.late
    return [
        at_most("kill -9 of one of two replicas: lost in flight on it", on_it, lost - late),
        at_most("… lost by those who connected while it died", on_it, late),
        exactly("… neither right nor lost", set(), set(load.outcomes) - {"right", "lost"}),
        at_most("… routing clean after", ROUTING_SECONDS * scale.slack, seconds, " s"),
        exactly("… replicas afterwards", 2, replicas),
        exactly("… exit code of the service", 0, code),
    ]


async def _clean(service: Service, victim: psutil.Process) -> float:
    """Return the time at which another worker runs and from which all requests are answered."""
    async with asyncio.timeout(HANG_SECONDS):
        while len({*service.children} - {victim}) < 2:
            await asyncio.sleep(0.05)
        while not await asyncio.to_thread(service.ready):
            await asyncio.sleep(0.05)
    started, fine = time.monotonic(), 0
    while fine < CLEAN:
        fine += 1
        try:
            right = await encoded(service, TEXTS) == "right"
        except (Lost, OSError):
            right = False
        if not right:
            started, fine = time.monotonic(), 0
    return started
