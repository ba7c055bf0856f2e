"""Time of requests that take more from a forward pass, relative to pooled vectors, in turn.

    python -m benchmarks.one_pass [--artifact FOLDER] [--rounds 7]

The requests go through the whole application, without a network; replies are binary. Three ratios:
all outputs of a bge-m3 against its dense vectors (goal: at most 1.1), left out for a model without
them; the vectors of eight spans beside the pooled one against the pooled one (goal: at most 1.05);
and a text in windows against one of half its length (goal: 2, as the work is linear).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from functools import partial
from pathlib import Path

import httpx

from benchmarks.explain import post, seconds_of
from benchmarks.harness.timing import median_ratio
from service.app import create_app
from service.artifacts.opening import open_artifact
from service.settings import Settings

WORD = "time "  # a token in the vocabularies of the default models
TEXTS, WORDS, SPANS = 8, 128, 8
WINDOWED_WORDS = (1024, 2048, 4096)
"""Lengths of texts in windows, each twice the one before."""
HYBRID = ["pooled", "sparse", "multivector"]
Body = dict[str, object]


def bodies(outputs: list[str]) -> dict[str, Body]:
    """Return the requests by name, given the outputs that the model has."""
    text = WORD * WORDS
    step = len(text) // SPANS
    spans = [[first, first + step] for first in range(0, step * SPANS, step)]
    mean: Body = {"outputs": ["pooled"], "pooling": "mean"}  # the others have no windows
    pooled = mean | {"inputs": [text] * TEXTS, "truncate": True}
    named = {"pooled": pooled, "spans": pooled | {"spans": [spans] * TEXTS}}
    if {*HYBRID} <= {*outputs}:
        named["all outputs"] = pooled | {"outputs": HYBRID}
    windowed = mean | {"overflow": "windows"}
    return named | {
        f"windows {words}": windowed | {"inputs": [WORD * words]} for words in WINDOWED_WORDS
    }


async def measure(settings: Settings, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each request by round, after one round that does not count."""
    app = create_app(settings, [open_artifact(settings)], [])
    transport = httpx.ASGITransport(app)
    client = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=600)
    async with app.router.lifespan_context(app), client:
        info = (await client.get("/info")).json()
        named = bodies(info["outputs"])
        spent: dict[str, list[float]] = {name: [] for name in named}
        for number in range(rounds + 1):
            for name, body in named.items():
                seconds = await seconds_of(partial(post, client, "/encode", body))
                if number:
                    spent[name].append(seconds)
    return spent


def ratios(spent: dict[str, list[float]]) -> dict[str, float]:
    """Return the median of the rounds' ratios of each pair of requests."""
    pairs = [("spans", "pooled"), ("all outputs", "pooled")]
    names = [f"windows {words}" for words in WINDOWED_WORDS]
    pairs += zip(names[1:], names, strict=False)
    return {
        f"{above} / {below}": median_ratio(spent[above], spent[below])
        for above, below in pairs
        if above in spent
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--artifact", type=Path, help="the default model by default")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    chosen = {"artifact": options.artifact} if options.artifact else {}
    settings = Settings(**chosen, request_timeout_seconds=600)
    spent = asyncio.run(measure(settings, options.rounds))
    for name, seconds in spent.items():
        print(f"{name}: {statistics.median(seconds):.3f} s")
    for name, ratio in ratios(spent).items():
        print(f"{name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
