"""Requests of every shape over many connections at once, each of which must get its own reply.

The stub answers from a hash of a text's own tokens, so that the exact reply is known.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from testing.client import Connection, Lost, request
from trials import oracle
from trials.gates import Gate, Scale, exactly, main
from trials.servers import stub

CONNECTIONS, SEED, TEXTS = 64, 2, 500
LENGTHS = [1, 1, 2, 3, 5, 8, 13, 21, 34, 55]
SIZES = [1, 1, 1, 1, 2, 3, 5, 8]


@dataclass(frozen=True)
class Asked:
    """Fields of a request."""

    texts: list[str]
    layer: int
    mode: str
    normalize: bool
    dimensions: int
    with_tokens: bool

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
        return request("/encode", body)


def requests(generator: random.Random) -> Iterator[Asked]:
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
        )


def is_right(asked: Asked, body: bytes) -> bool:
    """Return whether a reply has exactly the requested results, text by text."""
    results = orjson.loads(body)["results"]
    return len(results) == len(asked.texts) and all(
        _is_right(asked, text, result) for text, result in zip(asked.texts, results, strict=True)
    )


def _is_right(asked: Asked, text: str, result: dict[str, Any]) -> bool:
    if result["token_ids"] != oracle.tokens_of(text).input_ids.tolist():
        return False
    if asked.with_tokens:
        vectors = np.array(result["embeddings"], np.float32)
        if not np.array_equal(vectors, oracle.hidden(text, asked.layer)):
            return False
    pooled = np.array(result["pooled"], np.float32)
    expected = oracle.pooled(
        text, asked.layer, asked.mode, asked.dimensions, normalize=asked.normalize
    )
    return np.array_equal(pooled, expected)


async def trial(scale: Scale) -> list[Gate]:
    """Run clients that each send the next request as soon as they have a reply."""
    count = scale.of(200_000, 600)
    source, outcomes = requests(random.Random(SEED)), Counter[str]()
    todo = iter(range(count))
    async with stub(max_batch_tokens=128) as service:

        async def client() -> None:
            connection = await Connection.to(service.port)
            for _ in todo:
                asked = next(source)
                try:
                    reply = await connection.ask(asked.content())
                except Lost:
                    outcomes["lost"] += 1
                    connection = await Connection.to(service.port)
                    continue
                if reply.status != 200:
                    outcomes["refused"] += 1
                else:
                    outcomes["right" if is_right(asked, reply.body) else "mixed up"] += 1
            outcomes["surplus"] += connection.surplus
            connection.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(client())
        batches, texts = (await service.counts())["batches"], (await service.counts())["texts"]
    return [
        exactly("replies that are right", count, outcomes["right"]),
        exactly("mixed up", 0, outcomes["mixed up"]),
        exactly("lost", 0, outcomes["lost"]),
        exactly("refused", 0, outcomes["refused"]),
        exactly("bytes beyond one reply each", 0, outcomes["surplus"]),
        Gate("texts a batch", "> 1", f"{texts / batches:.1f}", texts > batches),
    ]


def run(scale: Scale) -> list[Gate]:
    """Return the gates of concurrency, with the stub."""
    return asyncio.run(trial(scale))


if __name__ == "__main__":
    main(__doc__, mixups=run)
