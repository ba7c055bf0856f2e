"""Texts at once, of which each must get its own reply, by the model that it names.

Stubs answer from a hash of a text's own tokens, so that the exact reply is known. With the real
encoder, results of texts in random batches are held against the same texts alone.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import orjson
from safetensors.numpy import load

from benchmarks.harness.texts import read_workload
from testing.client import Reply, ask, request
from testing.clients import Clients
from trials import oracle
from trials.gates import Gate, Scale, at_least, at_most, exactly
from trials.servers import BINARY, Service, serve, stub

CONNECTIONS, SEED, TEXTS = 64, 2, 500
LENGTHS = [1, 1, 2, 3, 5, 8, 13, 21, 34, 55]
SIZES = [1, 1, 1, 1, 2, 3, 5, 8]
MODELS = {"narrow": 24, "org/wide": 96, "widest": 384}
"""Hidden sizes of several models by name; requests without a name get the first."""
UNKNOWN = "no such model"


@dataclass(frozen=True)
class Asked:
    """Fields of a request."""

    texts: list[str]
    layer: int
    mode: str
    normalize: bool
    dimensions: int
    with_tokens: bool
    model: str | None

    def content(self) -> bytes:
        """Return the request's bytes; a single text is sometimes a string instead of a list."""
        bare = len(self.texts) == 1 and self.normalize
        body = {
            "inputs": self.texts[0] if bare else self.texts,
            "outputs": ["tokens", "pooled"] if self.with_tokens else ["pooled"],
            "layer": self.layer,
            "pooling": self.mode,
            "normalize": self.normalize,
            "dimensions": self.dimensions,
        }
        return request("/encode", body if self.model is None else {**body, "model": self.model})

    def outcome(self, reply: Reply, models: Mapping[str, int]) -> str:
        """Return `right` for exactly the requested results, text by text."""
        if self.model == UNKNOWN:
            listed = all(name in reply.body.decode() for name in models)
            return "unknown" if reply.status == 404 and listed else "unknown, but not refused"
        if reply.status != 200:
            return "refused"
        body, size = orjson.loads(reply.body), 384
        if models:
            name = self.model or next(iter(models))
            size = models[name]
            if not body["model"] == reply.header("x-model") == name:
                return "mixed up"
        results = body["results"]
        right = len(results) == len(self.texts) and all(
            map(self._is_right, self.texts, results, itertools.repeat(size))
        )
        return "right" if right else "mixed up"

    def _is_right(self, text: str, result: dict[str, Any], hidden_size: int) -> bool:
        if result["token_ids"] != oracle.tokens_of(text).input_ids.tolist():
            return False
        if self.with_tokens:
            vectors = np.array(result["embeddings"], np.float32)
            if not np.array_equal(vectors, oracle.hidden(text, self.layer, hidden_size)):
                return False
        expected = oracle.pooled(
            *(text, self.layer, self.mode, self.dimensions),
            normalize=self.normalize,
            hidden_size=hidden_size,
        )
        return np.array_equal(np.array(result["pooled"], np.float32), expected)


def requests(generator: random.Random, names: Sequence[str | None]) -> Iterator[Asked]:
    """Yield random requests without end."""
    pool = [oracle.words(generator, generator.choice(LENGTHS)) for _ in range(TEXTS)]
    while True:
        texts = generator.choices(pool, k=generator.choice(SIZES))
        yield Asked(
            texts,
            generator.randrange(7),
            generator.choice(("mean", "cls", "max", "last")),
            generator.random() < 0.5,
            generator.choice((1, 4, 16)),
            len(texts) == 1 and len(texts[0]) < 20 and generator.random() < 0.1,
            generator.choice(names),
        )


async def at_once(service: Service, count: int, models: Mapping[str, int]) -> Clients:
    """Run clients that each send the next request as soon as they have a reply."""
    names = [*models, *models, None, UNKNOWN] if models else [None]
    asked = itertools.islice(requests(random.Random(SEED), names), count)
    load = Clients(
        service.port, ((one.content(), partial(one.outcome, models=models)) for one in asked)
    )
    await load.finish(CONNECTIONS)
    return load


async def mixups(scale: Scale) -> list[Gate]:
    """Send requests of every shape to one model."""
    count = scale.of(200_000, 600)
    async with stub(max_batch_tokens=128) as service:
        load = await at_once(service, count, {})
        counts = await service.counts()
    batches, texts = counts["batches"], counts["texts"]
    return [
        exactly("replies that are right", count, load.outcomes["right"]),
        *(exactly(name, 0, load.outcomes[name]) for name in ("mixed up", "lost", "refused")),
        exactly("bytes beyond one reply each", 0, load.surplus),
        Gate("texts a batch", "> 1", f"{texts / batches:.1f}", texts > batches),
    ]


async def models(scale: Scale) -> list[Gate]:
    """Send requests to several models, each with vectors of its own size."""
    count = scale.of(100_000, 400)
    async with stub(models=MODELS, max_batch_tokens=128) as service:
        outcomes = (await at_once(service, count, MODELS)).outcomes
    unknown = outcomes["unknown"]
    return [
        exactly("replies of the model that was named", count - unknown, outcomes["right"]),
        at_least("unknown names answered with the known names", 1, unknown),
        exactly(
            "otherwise", set(), {name for name, n in outcomes.items() if n} - {"right", "unknown"}
        ),
    ]


MOST_TEXTS, CLIENTS = 8, 16
MAPS = {"layers": [0, -1], "heads": [0, 5, 11]}
Seen = dict[str, np.ndarray]
"""Tensors of one text by name: `[S]`, `[S, H]`, `[H]`, `[layers, heads, S, S]`."""


@dataclass
class Found:
    """Largest differences so far, and numbers of compared texts."""

    texts: int = 0
    maps: int = 0
    out_of_order: int = 0
    differences: dict[str, float] = field(default_factory=dict)

    def compare(self, alone: Seen, seen: Seen) -> None:
        """Compare a text's tensors with the same text's alone."""
        if any(alone[name].shape != tensor.shape for name, tensor in seen.items()) or (
            "token_ids" in seen and not np.array_equal(alone["token_ids"], seen["token_ids"])
        ):
            self.out_of_order += 1
            return
        for name, tensor in seen.items():
            self._keep(name, tensor - alone[name])
        if "attention" in seen:
            self.maps += 1
            self._keep("rows", seen["attention"].sum(axis=-1) - 1)
        else:
            self.texts += 1

    def _keep(self, name: str, differences: np.ndarray) -> None:
        """Keep the largest absolute difference; infinite if any is not finite."""
        largest = float(np.abs(differences).max())
        largest = largest if np.isfinite(largest) else float("inf")
        self.differences[name] = max(self.differences.get(name, 0.0), largest)


async def tensors(service: Service, path: str, texts: Sequence[str]) -> list[Seen]:
    """Return the tensors of each text in a binary reply."""
    options: dict[str, object] = {} if path == "/encode" else MAPS
    body = {"inputs": texts, "truncate": True, **options}
    while (reply := await ask(service.port, path, body, **BINARY)).status == 429:
        await asyncio.sleep(0.1)  # a busy machine computes less than the clients ask for
    if reply.status != 200:
        raise RuntimeError(f"{path} answered {reply.status}")
    found = load(reply.body)
    if path == "/attention":
        return [{"attention": found[f"attention.{index}"]} for index in range(len(texts))]
    rows = itertools.pairwise(found["cu_seqlens"].tolist())
    return [
        {"pooled": pooled, **{name: found[name][a:b] for name in ("token_ids", "embeddings")}}
        for pooled, (a, b) in zip(found["pooled"], rows, strict=True)
    ]


async def batching(scale: Scale) -> list[Gate]:
    """Encode texts alone, then single or in lists while other clients request other texts."""
    count, generator = scale.of(20_000, 60), random.Random(SEED)
    texts = read_workload(None, scale.of(1_000, 15))
    found = Found()
    async with serve() as service:
        paths = "/encode", "/attention"
        alone = [
            {
                **(await tensors(service, paths[0], [text]))[0],
                **(await tensors(service, paths[1], [text]))[0],
            }
            for text in texts
        ]

        async def client() -> None:
            while found.texts < count:
                chosen = generator.choices(range(len(texts)), k=generator.randint(1, MOST_TEXTS))
                for path in paths if generator.random() < 0.1 else paths[:1]:
                    results = await tensors(service, path, [texts[i] for i in chosen])
                    for i, seen in zip(chosen, results, strict=True):
                        found.compare(alone[i], seen)

        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(client())
    largest = found.differences
    vectors = max(largest["embeddings"], largest["pooled"])
    return [
        at_least("texts in random batches", count, found.texts),
        at_most("largest difference to the text alone", 1e-5, vectors),
        exactly("out of order", 0, found.out_of_order),
        at_most(f"attention rows from 1 ({found.maps} texts)", 1e-4, largest.get("rows", 0.0)),
        at_most(
            "largest difference of a weight to the text alone", 1e-5, largest.get("attention", 0.0)
        ),
    ]
