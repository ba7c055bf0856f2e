"""Processor time of a request's front end in each dialect, beside /encode of the same texts.

Run: python -m benchmarks.dialects [--rounds N] [--requests N]. The application runs in this process
and is called as its server calls it, over an engine that computes nothing. Processor time is
of all threads, in changing order; figures are medians of the rounds' ratios. The exit code is 1 if
a ratio is above the goal.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import http
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import FastAPI

from benchmarks.harness.report import markdown
from benchmarks.harness.service import default_artifact
from benchmarks.harness.timing import median_ratio, seconds_of
from service.app import create_app
from service.settings import Settings

GOAL = 1.1
"""Maximum processor time of a dialect's request, relative to /encode's."""
TEXT = "What is Deep Learning, and how does it differ from what came before it?"
COUNTS = (1, 32)
"""Numbers of texts in a request."""


@dataclass(frozen=True)
class Way:
    """A request of a dialect."""

    name: str
    path: str
    body: Callable[[Sequence[str]], dict[str, Any]]


BASE = Way("/encode", "/encode", lambda texts: {"inputs": texts, "outputs": ["pooled"]})
WAYS = (
    Way("OpenAI", "/v1/embeddings", lambda texts: {"model": "any", "input": texts}),
    Way(
        "OpenAI, base64",
        "/v1/embeddings",
        lambda texts: {"model": "any", "input": texts, "encoding_format": "base64"},
    ),
    Way("TEI", "/embed", lambda texts: {"inputs": texts}),
)


async def ask(app: FastAPI, path: str, body: bytes) -> bytes:
    """Return the reply to one request.

    Raises:
        RuntimeError: the reply is an error.

    """
    headers = [
        (b"host", b"localhost"),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "state": {},
    }
    waiting = [{"type": "http.request", "body": body, "more_body": False}]
    never = asyncio.Event()
    status, parts = 0, []

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop()
        await never.wait()
        raise AssertionError

    async def send(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    if status != http.HTTPStatus.OK:
        raise RuntimeError(b"".join(parts).decode())
    return b"".join(parts)


def measure(app: FastAPI, count: int, requests: int, rounds: int) -> dict[str, list[float]]:
    """Return the processor seconds of `requests` requests of `count` texts, by way and round."""
    with asyncio.Runner() as runner:
        lifespan = app.router.lifespan_context(app)
        runner.run(lifespan.__aenter__())

        async def repeat(path: str, body: bytes) -> None:
            for _ in range(requests):
                await ask(app, path, body)

        def call(way: Way) -> None:
            body = orjson.dumps(way.body([TEXT] * count))
            runner.run(repeat(way.path, body))

        ways = (BASE, *WAYS)
        for way in ways:
            call(way)  # the first calls are slower
        seconds: dict[str, list[float]] = {way.name: [] for way in ways}
        for number in range(rounds):
            first = number % len(ways)  # a way's garbage may be collected during the next way
            for way in (*ways[first:], *ways[:first]):
                seconds[way.name].append(
                    seconds_of(functools.partial(call, way), time.process_time)
                )
        runner.run(lifespan.__aexit__(None, None, None))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--requests", type=int, default=100)
    options = parser.parse_args()
    rows, worst = [], 0.0
    for count in COUNTS:
        app = create_app(Settings(engine="fake"), [default_artifact()])
        requests = max(1, options.requests // count)
        seconds = measure(app, count, requests, options.rounds)
        for way in (BASE, *WAYS):
            own = seconds[way.name]
            ratio = median_ratio(own, seconds[BASE.name])
            milliseconds = 1000 * statistics.median(own) / requests
            rows.append((way.name, str(count), f"{milliseconds:.2f} ms", f"{ratio:.2f}"))
            worst = max(worst, ratio)
    print(markdown(("dialect", "texts", "processor time", "× /encode"), rows))
    sys.exit(worst > GOAL)


if __name__ == "__main__":
    main()
