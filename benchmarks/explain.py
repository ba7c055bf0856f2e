"""Time of occlusion relative to encoding the same number of texts, both over HTTP, in turn.

Occlusion of two texts of S tokens takes 2 S + 2 forward passes of a text; the other request is
/encode with as many texts of S tokens, pooled. Both replies are binary.

    python -m benchmarks.explain --tokens 128 --rounds 7
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import httpx

from benchmarks.harness.timing import median_ratio
from service.app import create_app
from service.artifacts.opening import open_artifact
from service.settings import Settings

BINARY = {"accept": "application/vnd.safetensors"}
WORD = "time "  # a token in the vocabularies of the default models
SPECIAL_TOKENS = 2


async def post(client: httpx.AsyncClient, path: str, body: dict[str, object]) -> None:
    response = await client.post(path, json=body, headers=BINARY)
    response.raise_for_status()


async def seconds_of(call: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


async def measure(tokens: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round, in turn, after one round that does not count."""
    limits = {"max_client_batch_size": 4096, "max_queue_tokens": 2**22}
    settings = Settings(**limits, request_timeout_seconds=600)
    app = create_app(settings, [open_artifact(settings)], [])
    text = WORD * (tokens - SPECIAL_TOKENS)
    occlusion = {"inputs": [[text, text]], "include": ["occlusion"]}
    encoding = {"inputs": [text] * (2 * tokens + 2), "outputs": ["pooled"]}
    transport = httpx.ASGITransport(app)
    client = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=600)
    spent: dict[str, list[float]] = {"occlusion": [], "encoding": []}
    async with app.router.lifespan_context(app), client:
        for number in range(rounds + 1):
            ways = {
                "occlusion": lambda: post(client, "/explain", occlusion),
                "encoding": lambda: post(client, "/encode", encoding),
            }
            for name, call in ways.items():
                seconds = await seconds_of(call)
                if number:
                    spent[name].append(seconds)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each text")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    spent = asyncio.run(measure(options.tokens, options.rounds))
    for name, seconds in spent.items():
        print(f"{name}: {statistics.median(seconds):.3f} s")
    ratio = median_ratio(spent["occlusion"], spent["encoding"])
    print(f"occlusion / encoding as many texts: {ratio:.2f}")


if __name__ == "__main__":
    main()
