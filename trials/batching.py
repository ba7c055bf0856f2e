"""Results of texts in random batches against the same texts alone, with the real encoder.

Each text is encoded alone once; then again and again, single or in lists, while other clients
request other texts and attention maps.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from safetensors.numpy import load

from benchmarks.harness.texts import read_workload
from testing.client import ask
from trials.gates import Gate, Scale, at_most, exactly, main
from trials.servers import Service, serve

CLIENTS, SEED = 16, 3
MOST_TEXTS = 8
BINARY = {"accept": "application/vnd.safetensors"}
MAPS = {"layers": [0, -1], "heads": [0, 5, 11]}


@dataclass(frozen=True)
class Seen:
    """Result of one text: `[S]`, `[S, H]`, `[H]`, `[layers, heads, S, S]`."""

    token_ids: np.ndarray
    embeddings: np.ndarray
    pooled: np.ndarray
    attention: np.ndarray | None = None


@dataclass
class Found:
    """Largest differences so far, and numbers of compared texts."""

    texts: int = 0
    max_abs_diff: float = 0.0
    out_of_order: int = 0
    maps: int = 0
    row_sum_diff: float = 0.0
    maps_max_abs_diff: float = 0.0

    def compare(self, alone: Seen, seen: Seen) -> None:
        """Compare a text's vectors with the same text's alone."""
        self.texts += 1
        if not np.array_equal(alone.token_ids, seen.token_ids):
            self.out_of_order += 1
            return
        for one, other in ((alone.embeddings, seen.embeddings), (alone.pooled, seen.pooled)):
            self.max_abs_diff = max(self.max_abs_diff, largest(one - other))

    def compare_maps(self, alone: Seen, attention: np.ndarray) -> None:
        """Compare a text's maps with the maps of the same text alone."""
        self.maps += 1
        assert alone.attention is not None
        if attention.shape != alone.attention.shape:
            self.out_of_order += 1
            return
        self.row_sum_diff = max(self.row_sum_diff, largest(attention.sum(axis=-1) - 1))
        self.maps_max_abs_diff = max(self.maps_max_abs_diff, largest(attention - alone.attention))


def largest(differences: np.ndarray) -> float:
    """Return the largest absolute difference; infinite if any is not finite."""
    difference = float(np.abs(differences).max())
    return difference if np.isfinite(difference) else float("inf")


def split(body: bytes) -> Iterator[Seen]:
    """Yield the result of each text in a binary reply of /encode."""
    tensors = load(body)
    bounds = tensors["cu_seqlens"].tolist()
    for index, pooled in enumerate(tensors["pooled"]):
        rows = slice(bounds[index], bounds[index + 1])
        yield Seen(tensors["token_ids"][rows], tensors["embeddings"][rows], pooled)


async def encode(service: Service, texts: Sequence[str]) -> list[Seen]:
    """Return the vectors of texts, from one request."""
    reply = await ask(service.port, "/encode", {"inputs": texts, "truncate": True}, **BINARY)
    if reply.status != 200:
        raise RuntimeError(f"/encode answered {reply.status}")
    return list(split(reply.body))


async def maps(service: Service, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the maps of texts, from one request."""
    body = {"inputs": texts, "truncate": True, **MAPS}
    reply = await ask(service.port, "/attention", body, **BINARY)
    if reply.status != 200:
        raise RuntimeError(f"/attention answered {reply.status}")
    tensors = load(reply.body)
    return [tensors[f"attention.{index}"] for index in range(len(texts))]


async def trial(scale: Scale) -> list[Gate]:
    """Encode the texts alone, then in random batches."""
    count, generator = scale.of(20_000, 60), random.Random(SEED)
    texts = read_workload(None, scale.of(1_000, 15))
    differences = Found()
    async with serve() as service:
        alone = []
        for text in texts:
            (seen,), (attention,) = await encode(service, [text]), await maps(service, [text])
            alone.append(Seen(seen.token_ids, seen.embeddings, seen.pooled, attention))

        async def client() -> None:
            while differences.texts < count:
                chosen = generator.choices(range(len(texts)), k=generator.randint(1, MOST_TEXTS))
                asked = [texts[i] for i in chosen]
                if generator.random() < 0.1:
                    for i, attention in zip(chosen, await maps(service, asked), strict=True):
                        differences.compare_maps(alone[i], attention)
                for i, seen in zip(chosen, await encode(service, asked), strict=True):
                    differences.compare(alone[i], seen)

        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(client())
    return [
        Gate(
            "texts in random batches",
            f"≥ {count}",
            str(differences.texts),
            differences.texts >= count,
        ),
        at_most("largest difference to the text alone", 1e-5, differences.max_abs_diff),
        exactly("out of order", 0, differences.out_of_order),
        at_most(
            f"attention rows from 1 ({differences.maps} texts)", 1e-4, differences.row_sum_diff
        ),
        at_most(
            "largest difference of a weight to the text alone", 1e-5, differences.maps_max_abs_diff
        ),
    ]


def run(scale: Scale) -> list[Gate]:
    """Return the gates of concurrency, with the real encoder."""
    return asyncio.run(trial(scale))


if __name__ == "__main__":
    main(__doc__, batching=run)
