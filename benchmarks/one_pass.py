"""Time of requests that take more from forward passes, relative to plain ones, in turn.

    python -m benchmarks.one_pass [--artifact FOLDER] [--rounds 7]
    python -m benchmarks.one_pass --occlusion --tokens 128

The requests go through the whole application, without a network; replies are binary. Three ratios:
all outputs of a bge-m3 against its dense vectors (goal: at most 1.1), left out for a model without
them; the vectors of eight spans beside the pooled one against the pooled one (goal: at most 1.05);
and a text in windows against one of half its length (goal: 2, as the work is linear). Or one ratio:
occlusion of two texts of S tokens, which takes 2 S + 2 forward passes, against as many texts.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path

import httpx

from benchmarks.harness.timing import median_ratio
from service.app import create_app
from service.artifacts.opening import open_artifact
from service.settings import Settings

BINARY = {"accept": "application/vnd.safetensors"}
WORD = "time "  # a token in the vocabularies of the default models
SPECIAL_TOKENS = 2
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


def occlusion(tokens: int) -> dict[str, Body]:
    """Return the requests for an occlusion, and for as many texts of as many tokens."""
    text = WORD * (tokens - SPECIAL_TOKENS)
    return {
        "encoding": {"inputs": [text] * (2 * tokens + 2), "outputs": ["pooled"]},
        "occlusion": {"inputs": [[text, text]], "include": ["occlusion"]},
    }


async def measure(settings: Settings, rounds: int, tokens: int) -> dict[str, list[float]]:
    """Return the seconds of each request by round, after one round that does not count.

    The requests are for an occlusion of texts of `tokens` tokens, unless it is 0.
    """
    app = create_app(settings, [open_artifact(settings)], [])
    transport = httpx.ASGITransport(app)
    client = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=600)
    async with app.router.lifespan_context(app), client:
        outputs = (await client.get("/info")).json()["outputs"]
        named = occlusion(tokens) if tokens else bodies(outputs)
        spent: dict[str, list[float]] = {name: [] for name in named}
        for number in range(rounds + 1):
            for name, body in named.items():
                path = "/explain" if name == "occlusion" else "/encode"
                began = time.perf_counter()
                (await client.post(path, json=body, headers=BINARY)).raise_for_status()
                if number:
                    spent[name].append(time.perf_counter() - began)
    return spent


def ratios(spent: dict[str, list[float]]) -> dict[str, float]:
    """Return the median of the rounds' ratios of each pair of requests."""
    pairs = [("occlusion", "encoding"), ("spans", "pooled"), ("all outputs", "pooled")]
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
    parser.add_argument("--occlusion", action="store_true", help="measure occlusion alone")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a text of --occlusion")
    options = parser.parse_args()
    chosen = {"artifact": options.artifact} if options.artifact else {}
    limits = {"max_client_batch_size": 4096, "max_queue_tokens": 2**22}
    settings = Settings(**chosen, **limits, request_timeout_seconds=600)
    tokens = options.tokens if options.occlusion else 0
    spent = asyncio.run(measure(settings, options.rounds, tokens))
    for name, seconds in spent.items():
        print(f"{name}: {statistics.median(seconds):.3f} s")
    for name, ratio in ratios(spent).items():
        print(f"{name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
