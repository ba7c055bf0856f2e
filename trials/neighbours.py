"""Single short texts beside one other client whose requests are legal, on the real engine.

Each kind of neighbour in turn; the texts come at fixed times, whatever the service does, and count
from then. Meanwhile liveness is asked for, and afterwards the memory is looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from testing.client import ask, request
from testing.generators import generate, load_beside
from testing.load import Job
from trials.gates import Gate, Scale, at_least, at_most, exactly, main
from trials.overload import Probes, p99, probing
from trials.servers import Service, serve
from trials.task_models import TASK_MODEL, TaskClass, with_task_model

RATE = 10.0
"""Single texts a second."""
SINGLE = [
    ("/encode", {"inputs": f"a short text, number {n}", "outputs": ["pooled"]}) for n in range(50)
]
MOST_BYTES = (512 + 256) * 2**20
"""Defaults of `--max-bytes-in-flight` and `--max-body-bytes-in-flight`: memory that requests and
their bodies take beyond what the service has at work."""
MAP_WORDS = "the water runs down the hill and " * 34 + "on and"
"""240 words, 242 tokens: their maps are 55 MB of JSON."""
WORDS = "the water runs down the hill and " * 36
"""250 words, more tokens than a text may have."""
LONG = (WORDS * 4)[:3760]
"""Longest text of which a list of 512 fits into a body of 2 MB."""
CUT = {"truncate": True, "outputs": ["pooled"]}
TASK = {"truncate": True, "model": TASK_MODEL}
BINARY = {"accept": "application/vnd.safetensors"}
SLOW_BYTES, SLOW_SECONDS = 2**16, 0.1
MEMORY_SECONDS = 60
DEADLINE = 30_000.0
"""Default of `--request-timeout-seconds`, in milliseconds."""
ADDRESS = "127.0.0.2"
"""Address of the other client."""
Beside = Callable[[Service], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Neighbour:
    """Kind of other client."""

    name: str
    beside: Beside
    fresh: bool = False
    """Whether it is the first client of a service that has just started."""
    task: TaskClass | None = None
    """Task head of that service's model; None for the default model."""


def sending(
    path: str, body: object, headers: dict[str, str] | None = None, connections: int = 1
) -> Beside:
    """A client that sends the same request again as soon as it has its reply.

    It has an address of its own, by which the service tells it from the client of single texts.
    """

    @contextlib.asynccontextmanager
    async def beside(service: Service) -> AsyncIterator[None]:
        job = Job(
            service.port,
            [(path, body)],
            headers or {},
            connections=connections,
            seconds=3600.0,
            patience_seconds=600.0,
            address=ADDRESS,
        )
        with load_beside(job):
            yield

    return beside


@contextlib.asynccontextmanager
async def slow_reader(service: Service) -> AsyncIterator[None]:
    """A client that takes 75 MB of maps, 64 KiB at a time."""

    async def read() -> None:
        while True:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", service.port, limit=SLOW_BYTES
            )
            with contextlib.closing(writer):
                writer.write(
                    request("/attention", {"inputs": [WORDS] * 4, "truncate": True}, BINARY)
                )
                while await reader.read(SLOW_BYTES):
                    await asyncio.sleep(SLOW_SECONDS)

    task = asyncio.create_task(read())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


explaining = sending(
    "/explain",
    {"inputs": [[WORDS, WORDS]], "include": ["occlusion"], "truncate": True},
    connections=8,
)
CONNECTIONS = 64
LISTS = {
    "512 texts of 3,760 characters to /tokenize": ("/tokenize", {"inputs": [LONG] * 512}),
    "500,000 exclamation marks to /tokenize": ("/tokenize", {"inputs": "!" * 500_000}),
    "512 texts of 3,760 characters to /encode": ("/encode", {"inputs": [LONG] * 512, **CUT}),
    "512 texts of 3,760 characters to /verify": (
        "/verify",
        {"inputs": [LONG] * 512, "truncate": True},
    ),
}
"""Path and body of large requests, by their description."""
NEIGHBOURS: Sequence[Neighbour] = (
    Neighbour(
        "lists of 512 texts of 250 words", sending("/encode", {"inputs": [WORDS] * 512, **CUT})
    ),
    Neighbour(
        "lists of 32 texts of 250 words", sending("/encode", {"inputs": [WORDS] * 32, **CUT})
    ),
    Neighbour("bodies of 8 MB", sending("/encode", {"inputs": ["!" * 16384] * 512, **CUT})),
    Neighbour("bodies of 2 MB", sending("/encode", {"inputs": ["!" * 16384] * 128, **CUT})),
    Neighbour(
        "every map of 6 texts",
        sending("/attention", {"inputs": [WORDS] * 6, "truncate": True}, BINARY),
    ),
    Neighbour(
        "/verify of 20 texts", sending("/verify", {"inputs": [WORDS] * 20, "truncate": True})
    ),
    Neighbour("a slow reader of 75 MB", slow_reader),
    Neighbour(
        "every map as JSON, 32 connections", sending("/attention", {"inputs": MAP_WORDS}, {}, 32)
    ),
    Neighbour("8 connections of /explain, warm", explaining),
    Neighbour("8 connections of /explain, cold", explaining, fresh=True),
    *(
        Neighbour(f"{name}, 64 connections", sending(*asked, {}, CONNECTIONS))
        for name, asked in LISTS.items()
    ),
    Neighbour(
        "512 texts of 3,760 characters to /rerank, 64 connections",
        sending("/rerank", {"query": "water", "texts": [LONG] * 512, **TASK}, {}, CONNECTIONS),
        fresh=True,
        task="ForSequenceClassification",
    ),
    Neighbour(
        "32 texts of 3,760 characters to /embed_sparse, 64 connections",
        sending("/embed_sparse", {"inputs": [LONG] * 32, **TASK}, {}, CONNECTIONS),
        fresh=True,
        task="ForMaskedLM",
    ),
)


async def singles(service: Service, seconds: int) -> tuple[set[str], float]:
    """Return the outcomes of single texts, and the p99 of their latency in ms."""
    job = Job(service.port, list(SINGLE), rate=RATE, count=round(RATE * seconds))
    result = await asyncio.to_thread(generate, job)
    return set(result.outcomes), p99(result.latencies_ms)


async def bytes_at_work(service: Service, scale: Scale) -> int:
    """Memory of a service whose engines have had full batches, long texts and all maps once.

    At short scale, where its growth is not judged, of a service that has just started.

    ONNX Runtime keeps 170 MB for such batches with the default model, until memory is released.
    """
    if scale is Scale.SHORT:
        return service.resident_bytes()
    await ask(service.port, "/verify", {"inputs": WORDS, "truncate": True})
    for _ in range(2):
        await ask(service.port, "/encode", {"inputs": [WORDS] * 256, **CUT})
        await ask(service.port, "/attention", {"inputs": WORDS, "truncate": True}, **BINARY)
    await asyncio.sleep(1)
    return service.resident_bytes()


async def trial(scale: Scale) -> list[Gate]:
    """Alone, then beside each."""
    gates, seconds = [], scale.of(30, 1)
    async with serve() as service:
        before = await bytes_at_work(service, scale)
        await singles(service, seconds)
        outcomes, alone = await singles(service, seconds)
        gates.append(exactly("alone", {"right"}, outcomes))
        for neighbour in NEIGHBOURS[scale.of(0, 1) :: scale.of(1, 5)]:
            probes = Probes()
            async with contextlib.AsyncExitStack() as stack:
                asked = service
                if neighbour.fresh:
                    asked = await stack.enter_async_context(with_task_model(neighbour.task))
                asked.forget_peak()
                await stack.enter_async_context(probing(asked, probes))
                await stack.enter_async_context(neighbour.beside(asked))
                outcomes, beside = await singles(asked, seconds)
                peak = asked.peak_bytes()
            name = f"beside {neighbour.name}"
            allowed = min(1000.0, 10 * alone) * scale.slack
            gates += [
                exactly(f"{name}: single texts", {"right"}, outcomes),
                at_most(f"{name}: their p99 (alone {alone:.0f} ms)", allowed, beside, " ms"),
                exactly(f"{name}: liveness probes that failed", 0, probes.failed),
                at_most(
                    f"{name}: longest silence of liveness",
                    250 * scale.slack,
                    max(probes.latencies_ms),
                    " ms",
                ),
                at_most(f"{name}: peak of memory", before + MOST_BYTES, peak, " bytes"),
            ]
        await asyncio.sleep(scale.of(MEMORY_SECONDS, 0))
        growth = service.resident_bytes() / before
        gates.append(at_most("memory a minute later, times that before", 1.2 * scale.slack, growth))
    return gates


async def trial_at_once(scale: Scale) -> list[Gate]:
    """Return the gates of each large request, of which a fresh service gets 64 at once."""
    gates = []
    for name, asked in [*LISTS.items()][: scale.of(len(LISTS), 1)]:
        async with serve() as service:
            before = await bytes_at_work(service, scale)
            service.forget_peak()
            job = Job(
                service.port,
                [asked],
                count=CONNECTIONS,
                connections=CONNECTIONS,
                patience_seconds=120.0,
            )
            result = await asyncio.to_thread(generate, job)
            answered, shed = (result.latencies(outcome) for outcome in ("right", "shed"))
            gates += [
                exactly(f"{name}: otherwise", set(), {*result.outcomes} - {"right", "shed"}),
                at_least(f"{name}: answered", 0, len(answered)),
                at_most(f"{name}: last answer", DEADLINE * scale.slack, max([0, *answered]), " ms"),
                at_most(f"{name}: last refusal", DEADLINE * scale.slack, max([0, *shed]), " ms"),
                at_most(f"{name}: peak", before + MOST_BYTES, service.peak_bytes(), " bytes"),
            ]
    return gates


def run(scale: Scale) -> list[Gate]:
    """Run the trial of a single short text beside any one legal client."""
    return asyncio.run(trial(scale))


def run_at_once(scale: Scale) -> list[Gate]:
    """Run the trial of 64 large requests at once."""
    return asyncio.run(trial_at_once(scale))


if __name__ == "__main__":
    main(__doc__, neighbours=run, at_once=run_at_once)
