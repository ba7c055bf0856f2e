"""What /encode keeps of its throughput under a flood of /attention.

Run: python -m benchmarks.flood [--rounds N] [--workload FILE]. Each round loads /encode alone, then
again while as many connections ask for every map, without pause; medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.load import Job
from benchmarks.servers import Running, artifact_of, headscope, running
from benchmarks.ways import generate
from benchmarks.workload import read_workload

TEXTS, CONNECTIONS = 600, 64
ENDLESS = 200
"""Times that the flood's texts are sent: it is cut off when /encode is done."""


@contextlib.contextmanager
def flooded(server: Running, texts: list[str]) -> Iterator[None]:
    """Every map of one text after the other, over as many connections as /encode has."""
    bodies: list[dict[str, object]] = [{"inputs": text, "truncate": True} for text in texts]
    job = Job(server.url.replace("/encode", "/attention"), bodies * ENDLESS, CONNECTIONS)
    command = [sys.executable, "-m", "benchmarks.load"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(job)).encode())
        process.stdin.close()
        try:
            yield
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workload", type=Path)
    options = parser.parse_args()
    texts = read_workload(options.workload, TEXTS)
    kept = []
    with running(headscope("flood", "fp32", artifact_of("fp32")), texts[0]) as server:
        job = Job(server.url, [server.server.body(text) for text in texts], CONNECTIONS)
        generate(job)
        for _ in range(options.rounds):
            alone = generate(job).seconds
            with flooded(server, texts[:50]):
                generate(Job(server.url, job.bodies[:100], CONNECTIONS))  # until both queues fill
                kept.append(alone / generate(job).seconds)
            print(f"{kept[-1]:.2f}", file=sys.stderr)
    print(f"/encode keeps {statistics.median(kept):.2f} ({min(kept):.2f} to {max(kept):.2f})")


if __name__ == "__main__":
    main()
