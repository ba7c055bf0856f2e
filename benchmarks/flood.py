"""Share of /encode's throughput that is left under a flood of /attention.

Run: python -m benchmarks.flood [--rounds N] [--workload FILE]. Each round loads /encode alone, then
again while as many connections request every map, without pause; the figure is the median ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from pathlib import Path

from benchmarks.harness.servers import (
    PATIENCE_SECONDS,
    Running,
    artifact_of,
    headscope,
    running,
)
from benchmarks.harness.texts import read_workload
from testing.load import Job, load_beside

TEXTS, CONNECTIONS = 600, 64
ENDLESS_SECONDS = 1e6
"""Duration of the flood, which is cut off when /encode is done."""


def flood(server: Running, texts: list[str]) -> contextlib.AbstractContextManager[object]:
    """Request every map of one text after another, over the number of connections of /encode."""
    requests = [("/attention", {"inputs": text, "truncate": True}) for text in texts]
    job = Job(
        server.port,
        [*requests],
        connections=CONNECTIONS,
        seconds=ENDLESS_SECONDS,
        patience_seconds=PATIENCE_SECONDS,
    )
    return load_beside(job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workload", type=Path)
    options = parser.parse_args()
    texts = read_workload(options.workload, TEXTS)
    shares = []
    with running(headscope("flood", "fp32", artifact_of("fp32")), texts[0]) as server:
        requests = server.requests(texts)
        server.load(requests, CONNECTIONS)
        for _ in range(options.rounds):
            alone = server.load(requests, CONNECTIONS).seconds
            with flood(server, texts[:50]):
                server.load(requests[:100], CONNECTIONS)  # until both queues fill
                shares.append(alone / server.load(requests, CONNECTIONS).seconds)
            print(f"{shares[-1]:.2f}", file=sys.stderr)
    print(f"/encode keeps {statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})")


if __name__ == "__main__":
    main()
