"""Several models behind one port, where no reply may be another model's.

The stubs answer from a hash of a text's own tokens with vectors of their model's size, so that the
exact reply is known.
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

from service.engines.contract import Pooling, TextTask
from service.engines.fake import FakeEngine
from testing.client import Connection, Lost, Reply, request
from trials import oracle
from trials.gates import Gate, Scale, exactly, main
from trials.servers import stub

CONNECTIONS, SEED, TEXTS, LAYER = 64, 3, 500, 2
SIZES = {"narrow": 24, "org/wide": 96, "widest": 384}
UNKNOWN = "no such model"
NAMES = [*SIZES, *SIZES, None, UNKNOWN]
"""Model names of requests; None stands for the first model."""


@dataclass(frozen=True)
class Asked:
    """Fields of a request."""

    texts: list[str]
    model: str | None
    with_tokens: bool

    def content(self) -> bytes:
        """Return the request's bytes."""
        body: dict[str, Any] = {
            "inputs": self.texts,
            "outputs": ["tokens", "pooled"] if self.with_tokens else ["pooled"],
            "layer": LAYER,
            "pooling": "mean",
            "normalize": False,
        }
        return request("/encode", body if self.model is None else body | {"model": self.model})


def requests(generator: random.Random) -> Iterator[Asked]:
    """Yield random requests without end."""
    pool = [oracle.words(generator, generator.randrange(1, 20)) for _ in range(TEXTS)]
    while True:
        texts = generator.choices(pool, k=generator.choice((1, 1, 1, 2, 5)))
        yield Asked(texts, generator.choice(NAMES), generator.random() < 0.1)


class Judge:
    """Expected replies of each model."""

    def __init__(self) -> None:
        config = oracle.artifact().manifest.config
        self._engines = {
            name: FakeEngine(config.model_copy(update={"hidden_size": size}))
            for name, size in SIZES.items()
        }

    def of(self, asked: Asked, reply: Reply) -> str:
        """Return the outcome of a request."""
        if asked.model == UNKNOWN:
            listed = all(name in reply.body.decode() for name in SIZES)
            return "refused rightly" if reply.status == 404 and listed else "refused wrongly"
        if reply.status != 200:
            return "lost"
        name, body = asked.model or next(iter(SIZES)), orjson.loads(reply.body)
        right = body["model"] == reply.header("x-model") == name and all(
            self._is_right(name, text, result)
            for text, result in zip(asked.texts, body["results"], strict=True)
        )
        return "right" if right else "another model's"

    def _is_right(self, name: str, text: str, result: dict[str, Any]) -> bool:
        seen = oracle.tokens_of(text)
        task = TextTask(seen.input_ids, seen.segment_ids, (LAYER,), Pooling(LAYER, "mean"))
        expected = self._engines[name].expected(task)
        tokens = np.array(result.get("embeddings", expected.hidden[0]), np.float32)
        return np.array_equal(np.array(result["pooled"], np.float32), expected.pooled) and (
            np.array_equal(tokens, expected.hidden[0])
        )


async def trial(scale: Scale) -> list[Gate]:
    """Run clients that each send a request to any model as soon as they have a reply."""
    count = scale.of(100_000, 400)
    source, outcomes, judge = requests(random.Random(SEED)), Counter[str](), Judge()
    unknown, todo = 0, iter(range(count))
    async with stub(models=SIZES, max_batch_tokens=128) as service:

        async def client() -> None:
            nonlocal unknown
            connection = await Connection.to(service.port)
            for _ in todo:
                asked = next(source)
                unknown += asked.model == UNKNOWN
                try:
                    reply = await connection.ask(asked.content())
                except Lost:
                    outcomes["lost"] += 1
                    connection = await Connection.to(service.port)
                else:
                    outcomes[judge.of(asked, reply)] += 1
            connection.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(client())
    return [
        exactly("replies of the model that was named", count - unknown, outcomes["right"]),
        exactly("of another", 0, outcomes["another model's"]),
        exactly("lost or refused", 0, outcomes["lost"]),
        exactly(
            "unknown names answered with the known names", unknown, outcomes["refused rightly"]
        ),
    ]


def run(scale: Scale) -> list[Gate]:
    """Return the gates of several models, with stubs."""
    return asyncio.run(trial(scale))


if __name__ == "__main__":
    main(__doc__, models=run)
