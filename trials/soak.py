"""Soak test: requests of every shape on the real service for a quarter of an hour.

Memory must not grow, and a canary's reply must stay the same. Memory is measured over the service
and its PyTorch process while idle; growth counts from the end of a warm-up with the same mixture.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from testing.client import Connection, Reply, request
from testing.clients import Clients, Judge
from trials import oracle
from trials.gates import Gate, Scale, at_least, exactly
from trials.servers import BINARY, PATIENT, Canary, Service, meanwhile, serve

CLIENTS, SEED, MAX_TOKENS = 6, 8, 256
PATIENT_FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in PATIENT.items()]
ATTENTION: list[dict[str, Any]] = [
    {"layers": [0], "heads": [0, 1]},
    {"layers": [-1], "top_k": 4},
    {"include": ["stats", "rollout"]},
    {"include": ["stats"], "ablate": [{"layer": 0, "head": 3}]},
]
ENCODE: list[dict[str, Any]] = [
    {},
    {"outputs": ["pooled"], "layer": 3},
    {"outputs": ["tokens"], "encoding_format": "base64"},
    {"pooling": "max", "dimensions": 8},
    {"backend": "torch", "outputs": ["pooled"]},
]
BAD: list[tuple[str, object, int]] = [
    ("/encode", {"inputs": []}, 422),
    ("/encode", {"inputs": "a", "layer": 99}, 422),
    ("/encode", {"inputs": "word " * 1000}, 422),
    ("/attention", {"inputs": "a", "heads": [0, 0]}, 422),
    ("/attention", ["not an object"], 422),
    ("/nothing", {}, 404),
]


def text(generator: random.Random) -> str:
    """Return a text of 1 to the maximum number of tokens, short ones more often."""
    return oracle.words(generator, round((MAX_TOKENS - 2) ** generator.random()))


def any_request(generator: random.Random) -> tuple[bytes, int]:
    """Return a random request's bytes, and the expected status of the reply."""
    headers = BINARY if generator.random() < 0.3 else {}
    chance = generator.random()
    if chance < 0.1:
        path, body, status = generator.choice(BAD)
        return request(path, body), status
    if chance < 0.12:
        return request("/verify", {"inputs": text(generator)}), 200
    if chance < 0.4:
        body = {"inputs": text(generator), **generator.choice(ATTENTION)}
        return request("/attention", body, headers), 200
    texts = [text(generator) for _ in range(generator.choice((1, 1, 1, 2, 4, 16)))]
    return request("/encode", {"inputs": texts, **generator.choice(ENCODE)}, headers), 200


def requests(generator: random.Random) -> Iterator[tuple[bytes, Judge]]:
    """Yield random requests, each with the judge of its reply's status."""
    while True:
        content, status = any_request(generator)
        yield content, partial(outcome, status)


def outcome(expected: int, reply: Reply) -> str:
    """Return `right`, or both statuses."""
    return "right" if reply.status == expected else f"{reply.status} for {expected}"


async def leaving(service: Service, generator: random.Random) -> None:
    """Connect again and again, and disconnect before or in the reply."""
    while True:
        connection = await Connection.to(service.port)
        connection.send(any_request(generator)[0])
        await asyncio.sleep(generator.random() / 20)
        connection.abort()
        await asyncio.sleep(generator.random())


async def load(service: Service, seconds: float, seed: int) -> Counter[str]:
    """Run several clients for some seconds, beside one that leaves."""
    clients = Clients(service.port, requests(random.Random(seed)))
    async with clients.running(CLIENTS), meanwhile(leaving(service, random.Random(seed))):
        await asyncio.sleep(seconds)
    return clients.outcomes


async def soak(scale: Scale) -> list[Gate]:
    """Warm up, measure, load, measure."""
    async with serve(*PATIENT_FLAGS) as service:
        outcomes = await load(service, scale.of(180, 1), SEED)
        canary = await Canary.of(service)
        outcomes += await load(service, scale.of(900, 2), SEED + 1)
        gates = await canary.gates(scale)
    return [
        at_least("requests that were answered as they must be", 1, outcomes["right"]),
        exactly("… otherwise", set(), set(outcomes) - {"right"}),
        *gates,
    ]
