"""Cost of the dashboard's views over HTTP: whole maps against pooled maps and single rows.

Run: python -m benchmarks.views [--rounds N] [--tokens S …]. Every view is fetched once a round, in
turn with the maps of one head of each layer; figures are medians of the rounds' ratios to that
request. Then each reply is compressed by gzip: its size, and the line rate below which gzip saves
time.
"""

from __future__ import annotations

import argparse
import functools
import http
import statistics
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from benchmarks.harness.report import markdown
from benchmarks.harness.servers import artifact_of, headscope, running
from benchmarks.harness.texts import read_workload
from benchmarks.harness.timing import in_turn
from model.artifact.manifest import TOKENIZER
from testing.blocking import Session

Body = dict[str, Any]
BASE = "one head of each layer"
THUMBNAILS: Body = {"include": ["weights", "stats"], "max_size": 96, "dtype": "float16"}
CHUNK_BYTES = 8 * 2**20
"""Bytes of whole maps that the dashboard requested at a time."""
SAFETENSORS = "application/vnd.safetensors"
LEVEL = 1
"""Compression level of gzip; a higher level takes two to three times as long to save 1% more."""


def whole_maps(tokens: int, layers: int, heads: int) -> list[Body]:
    """Return requests for all maps in float16, some layers at a time."""
    together = max(1, CHUNK_BYTES // (2 * heads * tokens**2))
    return [
        {"layers": [*range(first, min(first + together, layers))], "dtype": "float16"}
        for first in range(0, layers, together)
    ]


def views(tokens: int, layers: int = 6, heads: int = 12) -> dict[str, list[Body]]:
    """Return the requests of each view."""
    whole = whole_maps(tokens, layers, heads)
    row: Body = {"queries": [tokens // 2], "dtype": "float16"}
    return {
        BASE: [{"heads": [0]}],
        "first view: whole maps": [{"include": ["stats"]}, *whole],
        "first view: thumbnails": [THUMBNAILS],
        "thumbnails as JSON": [{name: THUMBNAILS[name] for name in ("include", "max_size")}],
        "finder: whole maps": whole,
        "finder: links from a token": [row],
        "finder: links between two": [row | {"keys": [tokens // 3]}],
    }


def fetch(session: Session, text: str, body: Body, *, binary: bool) -> bytes:
    """Return the reply to one request."""
    headers = {"accept": SAFETENSORS} if binary else None
    reply = session.ask("/attention", {"inputs": text, **body}, headers)
    if reply.status != http.HTTPStatus.OK:
        raise SystemExit(reply.body.decode())
    return reply.body


def measure(
    session: Session, text: str, asked: Mapping[str, list[Body]], rounds: int
) -> tuple[dict[str, list[bytes]], dict[str, list[float]]]:
    """Return each view's replies, and its seconds divided by the seconds of `BASE`, by round."""
    replies: dict[str, list[bytes]] = {}

    def fetched(name: str) -> None:
        binary = "JSON" not in name
        replies[name] = [fetch(session, text, body, binary=binary) for body in asked[name]]

    ways = {name: functools.partial(fetched, name) for name in asked}
    seconds = in_turn(ways, rounds)
    ratios = {
        name: [one / base for one, base in zip(found, seconds[BASE], strict=True)]
        for name, found in seconds.items()
    }
    return replies, ratios


def zipped(contents: Sequence[bytes]) -> tuple[float, float]:
    """Return the seconds to compress replies, and the share of their bytes that is left."""
    spent = []
    for _ in range(3):
        started = time.perf_counter()
        small = sum(len(zlib.compress(content, LEVEL)) for content in contents)
        spent.append(time.perf_counter() - started)
    return min(spent), small / sum(map(len, contents))


def table(replies: Mapping[str, list[bytes]], ratios: Mapping[str, list[float]]) -> str:
    """Return a Markdown table, a row a view."""
    heads = ("", "requests", "kB", f"× {BASE}", "gzip leaves", "in ms", "pays below, Mbit/s")
    rows = []
    for name, contents in replies.items():
        found, size = ratios[name], sum(map(len, contents))
        seconds, left = zipped(contents)
        spread = f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
        rate = 8e-6 * (1 - left) * size / seconds
        zips = (f"{left:.2f}", f"{1000 * seconds:.1f}", f"{rate:.0f}")
        rows.append((name, len(contents), f"{size / 1000:,.1f}", spread, *zips))
    return markdown(heads, rows)


def prose_of(tokens: int, tokenizer: Tokenizer) -> str:
    """Return English prose of `tokens` tokens, the two special tokens included."""
    prose = " ".join(read_workload(None, tokens))
    return prose[: tokenizer.encode(prose).offsets[tokens - 2][1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, nargs="+", default=[20, 128, 512])
    options = parser.parse_args()
    artifact = artifact_of("fp32")
    tokenizer = Tokenizer.from_file(str(artifact / TOKENIZER))
    flags = ["--max-length", str(max(options.tokens))]
    with running(headscope("views", "fp32", artifact, flags), "hello") as server:
        for tokens in options.tokens:
            with Session(server.port) as session:
                text = prose_of(tokens, tokenizer)
                found = measure(session, text, views(tokens), options.rounds)
            print(f"\n{tokens} tokens\n\n{table(*found)}", flush=True)


if __name__ == "__main__":
    main()
