"""Time and memory of /attention replies over HTTP, beside /encode of the same text.

Run: python -m benchmarks.attention_replies [--rounds N] [--tokens S]. Every kind is requested
once a round, in turn with /encode; figures are medians of the rounds' ratios. Memory is the
service's, above its level after the warm-up by /encode: its peak, and half a second after a reply.
"""

from __future__ import annotations

import argparse
import http
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from safetensors.numpy import load

from benchmarks.harness.report import markdown
from benchmarks.harness.servers import Running, artifact_of, headscope, running
from testing.blocking import Session
from testing.memory import MEBIBYTE, forget_peak, memory_bytes

HEADERS = {"accept": "application/vnd.safetensors"}
KINDS: dict[str, dict[str, Any]] = {
    "one head of one layer": {"layers": [-1], "heads": [3]},
    "all maps": {},
    "all maps, float16": {"dtype": "float16"},
    "top_k 5 of all maps": {"top_k": 5},
    "thumbnails of all maps, float16": {"max_size": 96, "dtype": "float16"},
    "a row of all maps": {"queries": [7]},
    "statistics of all heads": {"include": ["stats"]},
    "statistics and rollout": {"include": ["stats", "rollout"]},
    "one head, one other ablated": {
        "layers": [-1],
        "heads": [3],
        "ablate": [{"layer": 0, "head": 0}],
    },
}


@dataclass
class Cost:
    """Size, memory and time of one kind of reply."""

    size: int
    most: int
    left: int
    """Bytes of memory above the level before: `most` at the peak, `left` half a second later."""
    ratios: list[float]
    """Seconds of the reply divided by the seconds of /encode, by round."""


def ask(session: Session, route: str, body: dict[str, Any]) -> tuple[float, bytes]:
    """Return the seconds until the last byte, and the reply's body."""
    started = time.perf_counter()
    reply = session.ask(route, body, HEADERS)
    if reply.status != http.HTTPStatus.OK:
        raise SystemExit(reply.body.decode())
    return time.perf_counter() - started, reply.body


def measure(server: Running, tokens: int, rounds: int) -> dict[str, Cost]:
    """Return the cost of every kind of reply to a text of `tokens` tokens."""
    text = " ".join(["word"] * (tokens - 2))
    encode = {"inputs": text, "outputs": ["pooled"]}
    bodies = {kind: {"inputs": text, **body} for kind, body in KINDS.items()}
    with Session(server.port) as session:
        for _ in range(5):
            _, content = ask(session, "/encode", encode)
        count = len(load(content)["token_ids"])
        if count != tokens:
            raise SystemExit(f"the text has {count} tokens, not {tokens}")
        costs = memory_of(server.process.pid, session, bodies)
        for _ in range(rounds):
            for kind, body in bodies.items():
                base, _ = ask(session, "/encode", encode)
                own, _ = ask(session, "/attention", body)
                costs[kind].ratios.append(own / base)
    return costs


def memory_of(
    process: int, session: Session, bodies: Mapping[str, dict[str, Any]]
) -> dict[str, Cost]:
    """Request each kind once, and return its size and the service's memory."""
    level, costs = memory_bytes(process, "VmRSS"), {}
    for kind, body in bodies.items():
        forget_peak(process)
        _, content = ask(session, "/attention", body)
        most = memory_bytes(process, "VmHWM") - level
        time.sleep(0.5)
        left = memory_bytes(process, "VmRSS") - level
        costs[kind] = Cost(len(content), most, left, [])
    return costs


def table(tokens: int, costs: Mapping[str, Cost]) -> str:
    """Return the costs as a Markdown table."""
    heads = (f"{tokens} tokens, binary", "reply", "× /encode", "memory at most", "left")
    rows = [
        (
            kind,
            f"{cost.size / 1e6:.2f} MB",
            f"{statistics.median(cost.ratios):.2f} "
            f"({min(cost.ratios):.2f} to {max(cost.ratios):.2f})",
            f"+{cost.most / MEBIBYTE:.0f} MiB",
            f"+{cost.left / MEBIBYTE:.0f} MiB",
        )
        for kind, cost in costs.items()
    ]
    return markdown(heads, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    flags = ["--max-length", str(options.tokens)]
    with running(headscope("replies", "fp32", artifact_of("fp32"), flags), "hello") as server:
        costs = measure(server, options.tokens, options.rounds)
    print(table(options.tokens, costs))


if __name__ == "__main__":
    main()
