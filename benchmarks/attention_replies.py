"""What replies of /attention cost over HTTP, in time and memory, beside /encode of the same text.

Run: python -m benchmarks.attention_replies [--rounds N] [--tokens S]. Every kind is asked for once
a round, in turn with /encode; medians of the rounds' ratios. Memory is the service's, above its
level after the /encode of the warm-up: at its highest, and half a second after the last reply.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from safetensors.numpy import load

from benchmarks.servers import Running, artifact_of, headscope, running

HEADERS = {"accept": "application/vnd.safetensors", "content-type": "application/json"}
ENCODE: dict[str, Any] = {"outputs": ["pooled"]}
KINDS: dict[str, dict[str, Any]] = {
    "one head of one layer": {"layers": [-1], "heads": [3]},
    "all maps": {},
    "all maps, float16": {"dtype": "float16"},
    "top_k 5 of all maps": {"top_k": 5},
    "statistics of all heads": {"include": ["stats"]},
    "statistics and rollout": {"include": ["stats", "rollout"]},
    "one head, one other ablated": {
        "layers": [-1],
        "heads": [3],
        "ablate": [{"layer": 0, "head": 0}],
    },
}


def memory(process_id: int, name: str) -> float:
    """MiB: `VmRSS` is now, `VmHWM` the most so far."""
    status = Path(f"/proc/{process_id}/status").read_text(encoding="ascii")
    return int(status.partition(f"{name}:")[2].split()[0]) / 1024


def ask(
    connection: http.client.HTTPConnection, route: str, body: dict[str, Any]
) -> tuple[float, bytes]:
    """Seconds until the last byte, and the reply."""
    started = time.perf_counter()
    connection.request("POST", route, json.dumps(body), HEADERS)
    reply = connection.getresponse()
    content = reply.read()
    if reply.status != http.HTTPStatus.OK:
        raise SystemExit(content.decode())
    return time.perf_counter() - started, content


def measure(server: Running, tokens: int, rounds: int) -> list[str]:
    """The table's rows."""
    text, address = " ".join(["word"] * (tokens - 2)), urlsplit(server.url).netloc
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    sizes, most, left = {}, {}, {}
    with contextlib.closing(http.client.HTTPConnection(address)) as client:
        for _ in range(5):
            _, content = ask(client, "/encode", {"inputs": text, **ENCODE})
        found = len(load(content)["token_ids"])
        if found != tokens:
            raise SystemExit(f"the text has {found} tokens, not {tokens}")
        process = server.process.pid
        level = memory(process, "VmRSS")
        for kind, body in KINDS.items():
            Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")  # the most so far
            _, content = ask(client, "/attention", {"inputs": text, **body})
            sizes[kind], most[kind] = len(content), memory(process, "VmHWM") - level
            time.sleep(0.5)
            left[kind] = memory(process, "VmRSS") - level
        for _ in range(rounds):
            for kind, body in KINDS.items():
                encode, _ = ask(client, "/encode", {"inputs": text, **ENCODE})
                own, _ = ask(client, "/attention", {"inputs": text, **body})
                seconds[kind].append(own / encode)
    return [
        f"| {kind} | {sizes[kind] / 1e6:.2f} MB | {statistics.median(seconds[kind]):.2f} "
        f"({min(seconds[kind]):.2f} to {max(seconds[kind]):.2f}) "
        f"| +{most[kind]:.0f} MiB | +{left[kind]:.0f} MiB |"
        for kind in KINDS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    flags = ["--max-length", str(options.tokens)]
    with running(headscope("replies", "fp32", artifact_of("fp32"), flags), "hello") as server:
        rows = measure(server, options.tokens, options.rounds)
    print(f"| {options.tokens} tokens, binary | reply | × /encode | memory at most | left |")
    print("|---|---|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()
